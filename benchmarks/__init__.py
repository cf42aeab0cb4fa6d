"""Speed, as a ratio to the naive loop in the same run. Absolute times depend on the machine and its load."""
