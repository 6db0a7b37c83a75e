"""One rule a file: a pure function from a snapshot to findings."""
