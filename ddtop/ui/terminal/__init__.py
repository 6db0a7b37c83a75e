"""The real terminal below the dashboard: few bytes, keys, suspend and resume."""
