"""Clocks, windows, the interleaved schedule and what is seen beside the clock."""
