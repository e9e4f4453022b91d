"""Predict what a change to the input pipeline gains: steps per second, time, money and workers."""
