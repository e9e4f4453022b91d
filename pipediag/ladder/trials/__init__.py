"""Feed the running loop from a loader under other settings or a remedy, as further rungs of the ladder."""
