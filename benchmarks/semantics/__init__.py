"""Invent training scripts, and check that pipediag leaves what their loops see as it is."""
