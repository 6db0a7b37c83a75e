"""In the watched process: see, never disturb."""
