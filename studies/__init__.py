"""The studies behind docs/results: `python -m studies play` plays what is missing, `collect` writes the page."""
