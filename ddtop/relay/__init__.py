"""The relay: one process per host and run.

It collects frames, watches processes, and stores and forwards the frames. It reads the envelope of
a frame, not its content.
"""
