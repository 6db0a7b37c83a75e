"""The views of the main screen: one module each, all with the same interface."""
