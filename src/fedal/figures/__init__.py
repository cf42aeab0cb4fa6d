"""All drawing; no measurements."""
