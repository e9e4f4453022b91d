"""Follow the running training loop: which loader trains, epoch progress, loader copies, wrappers of loader parts."""
