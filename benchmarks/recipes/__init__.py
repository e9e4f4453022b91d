"""Public training scripts, unmodified: what pipediag says of them, held against what plain timing finds."""
