"""Seeded synthetic jobs as records: what the agents and relays of 1 to 131,072 ranks would say.

For scale tests, for screenshots, and for `ddtop --sim`. It knows what such a job does, and refuses
to know what anything means: no verdict is written here, the rules find it in the records as they do
in those of a real job.
"""
