"""All drawing. Nothing here measures."""
