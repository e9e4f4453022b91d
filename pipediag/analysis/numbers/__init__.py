"""Read a session as numbers with intervals: the ladder, the two sides of a step, the inside of a worker, load.

They import only ``session``, ``thresholds`` and each other: intervals and estimates below the ladder, the ladder below
the rest. Begin with :class:`.ladder.LadderView`.
"""
