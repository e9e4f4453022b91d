"""Look at batches, samples and the model outside the timed windows."""
