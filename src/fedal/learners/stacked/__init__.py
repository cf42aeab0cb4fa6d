"""Several small networks of one architecture that learn as one."""
