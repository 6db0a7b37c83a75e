"""Which rank is a straggler, and by how much."""
