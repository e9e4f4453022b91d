"""Measure time: clocks, windows, the account of a step, the interleaved schedule, and evidence from outside the clock.

It knows no loop and no loader, and imports only ``session``, ``usercode`` and what is below them. Begin with
:mod:`.window` (stopwatches of stretches and steps) and :mod:`.account` (where the milliseconds of a step went).
"""
