"""Simulated jobs with a seed: the records that the agents and relays of 1 to 131,072 ranks would
send.

They are for scale tests, for screenshots, and for `ddtop --sim`. This room knows what such a job
does, but not the verdict: the rules find that in the records, as for a real job.
"""
