"""A training that is disturbed in many ways, and what that cost: `python -m tests.soak`."""
