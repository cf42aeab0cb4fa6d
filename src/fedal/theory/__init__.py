"""Measures the quantities of the paper's theory on a federation whose learners and data are all visible."""
