"""Checks that need a machine with an NVIDIA GPU: run `python -m tools.gpu.check` there."""
