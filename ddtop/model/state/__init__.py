"""What is remembered of a job and its ranks, and the frozen facts that follow from it."""
