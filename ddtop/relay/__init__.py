"""The relay: one process per host and run. It collects frames, watches processes, keeps, forwards.

It reads the envelope of a frame, not its meaning.
"""
