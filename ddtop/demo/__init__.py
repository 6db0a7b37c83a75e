"""Real training scripts with real faults."""
