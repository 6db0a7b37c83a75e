"""Finds what is wrong, which rank is at fault, why, and what to do: pure rules over a snapshot."""
