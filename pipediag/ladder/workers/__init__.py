"""Act in a worker: make batches as the current rung asks, and say what each cost."""
