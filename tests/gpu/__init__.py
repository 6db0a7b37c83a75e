"""Checks that need a machine with an NVIDIA GPU: run `python -m tests.gpu.check` there."""
