"""Choose what is tried on the running loop (loader settings, remedies), and decide whether it pays."""
