"""What fetching, copying, transforming and encoding ahead of the loop gains, beside others' ways of doing it."""
