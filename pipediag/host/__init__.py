"""Run an unmodified script: the parent that orchestrates, and the child interpreter that measures."""
