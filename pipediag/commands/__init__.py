"""Implement the larger commands of the command line."""
