"""Choose what is tried on the running loop, and decide whether it pays: other loader settings (``settings`` chooses,
``halving`` races them), and remedies (``remedy``)."""
