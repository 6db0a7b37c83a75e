"""The current state of a job: it takes records and makes frozen snapshots.

Only `Job.apply` changes anything. Time arrives as an argument.
"""
