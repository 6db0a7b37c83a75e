"""What the agent reads in its rank, one source a file."""
