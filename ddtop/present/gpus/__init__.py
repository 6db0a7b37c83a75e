"""GPUs as text."""
