"""Methods that also send features of public samples, or how similar these look."""
