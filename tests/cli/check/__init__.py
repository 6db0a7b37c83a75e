"""Tests of `ddtop check`."""
