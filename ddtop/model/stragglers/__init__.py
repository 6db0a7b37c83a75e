"""Which rank comes last, and by how much."""
