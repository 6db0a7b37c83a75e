"""What is true now: records in, frozen snapshots out. `Job.apply` is the only mutator; time arrives as an argument."""
