"""Methods that also send features of public samples, or similarities between these."""
