"""A helper module with a name that everyone uses."""

MINE = "the script's own utils"
