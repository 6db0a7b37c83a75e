"""Waits until something is so in another process."""

import time


def once(true):
    """What `true` gives when it is true."""
    until = time.monotonic() + 20
    while not (found := true()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return found
