"""What is true of each rank: facts, time series, ends."""
