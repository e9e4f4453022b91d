"""Climb the ladder on a running loop: one window after another, each with the batches cached at one point of the input.

It may import everything below ``remedy`` and ``remedy`` itself; ``host`` and ``diagnosing`` use it. Begin with
:mod:`.measurement` (finds the loader that trains), then :mod:`.climb` (what is done in which order), :mod:`.steering`
(decides without I/O), :mod:`.windows` and :mod:`.settling` (do it), and :mod:`.workers` (the other end of the queue).
"""
