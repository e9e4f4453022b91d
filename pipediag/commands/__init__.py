"""What the larger commands of the command line do, behind its options."""
