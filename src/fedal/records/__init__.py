"""Writes and reads the record of a run: folders, rows, checkpoints and statistics."""
