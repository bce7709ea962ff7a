"""``paceline bench``: what the engine and its drafters give on this machine, one scenario at a time."""
