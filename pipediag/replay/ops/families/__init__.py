"""Apply image kernels to whole batches on a device, with one set of parameters for each sample."""
