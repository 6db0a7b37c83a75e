"""The part of ddtop inside each rank: it observes the program and never disturbs it."""
