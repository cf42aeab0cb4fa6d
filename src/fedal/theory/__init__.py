"""What the paper's theory is about, measured on a federation that is seen from above."""
