"""Merged stacks as text and JSON."""
