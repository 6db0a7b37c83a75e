"""Hosts in the model: which are heard, and on which clock."""
