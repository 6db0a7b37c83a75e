"""Stacks of this process: taken by the agent itself, or written by faulthandler at a signal."""
