"""Public training scripts of many kinds: what limits each, what pipediag says, and what its first advice gains."""
