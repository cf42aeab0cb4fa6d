"""Many runs: jobs, the pool that plays them, and what is made of their results."""
