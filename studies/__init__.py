"""The studies behind docs/results: `python -m studies run` plays what is missing, `collect` writes the page."""
