"""Hosts in the model: which are heard, their clocks, and processes that may become ranks."""
