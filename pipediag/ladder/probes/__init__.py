"""Look at batches, samples and the model beside the clock; nothing here is timed in a window."""
