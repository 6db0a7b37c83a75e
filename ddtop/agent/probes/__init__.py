"""The probes: what the agent reads in its rank, one source per file."""
