"""Remember the results of pure library calls by their inputs: the user's own code runs every time."""
