"""From a config to a run folder, and from many runs to a table."""
