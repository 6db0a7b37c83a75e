"""Stacks of many processes: whose code a frame is, and merged stacks."""
