"""Keep the deterministic part of each sample, so that later epochs do not make it again."""
