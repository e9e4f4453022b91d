"""Read a session as numbers with intervals: the ladder, the inside of a worker, lines, load, cores."""
