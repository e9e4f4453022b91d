"""Measure time: clocks, windows, the interleaved schedule, and evidence from outside the clock."""
