"""Image kernels for whole batches on a device, with one set of parameters for each sample."""
