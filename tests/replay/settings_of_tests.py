"""A module of settings, as scripts have it."""

GAIN = 1.5
