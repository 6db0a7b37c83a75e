"""Hosts in the model: which hosts report, and how their clocks differ."""
