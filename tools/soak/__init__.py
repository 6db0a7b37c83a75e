"""A training that is disturbed in many ways, and what that cost: `python -m tools.soak`."""
