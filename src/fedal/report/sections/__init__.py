"""One file per section of the page; `section(overview)` returns its content."""
