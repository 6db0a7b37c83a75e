"""A training that is not left in peace, and what it cost: `python -m tests.soak`."""
