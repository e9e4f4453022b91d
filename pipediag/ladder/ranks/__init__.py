"""Let the ranks of a distributed job take every step under the same rung, and find the one that holds it up.

Rank 0 leads (:class:`.lockstep.Leader`), the others follow (:mod:`.follow`). They exchange messages through
:mod:`.shared_store`, over authenticated connections (:mod:`.connection`). Begin with :mod:`.lockstep`.
"""
