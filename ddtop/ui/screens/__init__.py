"""Screens: they put widgets together and answer keys; what is shown comes from the session."""
