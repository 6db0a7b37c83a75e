"""What is true of a job now: records in, frozen snapshots out.

Only `Job.apply` changes anything. Time arrives as an argument.
"""
