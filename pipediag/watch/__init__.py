"""Look at a training that already runs, from outside, without touching it.

Begin with :mod:`.watching`: it samples the stacks of a training's processes (``sampling``, by py-spy), reads Linux's
counters of them, and makes a session of level *observed* that is analysed and reported like any other. ``processes``
finds the trainings of this machine, ``stacks`` says what a stack does, ``steps`` counts steps.
"""
