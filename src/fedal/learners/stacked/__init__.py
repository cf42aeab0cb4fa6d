"""Several small nets of one architecture that learn as one."""
