"""`fedal analyse`: restores a run from its folder and measures it."""
