"""A federation on one machine or a Ray cluster: from a config to a run folder."""
