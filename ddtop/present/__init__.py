"""Turns facts into text and JSON for people and programs, without a terminal.

Everything here is pure and imports neither textual nor rich, so that `ddtop status` and `ddtop
diagnose` start fast.
"""
