"""Prove on samples that replayed pixels equal those of the CPU, and say by how much they differ."""
