"""Compare pipediag with plain timing on public, unmodified training scripts."""
