"""Campaigns of many runs: jobs, the pool that runs them, comparisons, tuning and the paper's entries."""
