"""Repeat the recorded calls on the device, a whole batch at a time."""
