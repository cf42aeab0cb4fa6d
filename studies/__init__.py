"""The studies behind docs/results: `python -m studies run` runs what is missing, `collect` writes the page."""
