"""Follows a job, without any text or terminal: sources, the model on a thread, requests,
recordings."""
