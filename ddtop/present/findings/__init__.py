"""Findings as text: the banner, the timeline, the explanation pages."""
