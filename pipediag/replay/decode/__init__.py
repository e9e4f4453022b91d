"""Read JPEGs without decoding them in the worker, and decode them on the device."""
