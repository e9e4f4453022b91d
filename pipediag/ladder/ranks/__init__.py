"""Take the ranks of a distributed job up the ladder together, one step at a time."""
