"""What the rank's thread waits for in Python, while it makes no progress."""
