"""Readers for the step, phase and loss of each framework, one file per framework. Nothing is
changed."""
