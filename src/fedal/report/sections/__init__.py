"""One file per section of the page: `section(overview)` is its content."""
