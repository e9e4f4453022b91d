"""Implement the commands of the command line; ``cli`` imports each when it is used.

They may import all packages but ``cli``. Begin with ``analyze``; ``results`` measures a script for every command, and
delivers what it found.
"""
