"""What is written about runs, read again, and said of it: folders, rows, checkpoints, statistics."""
