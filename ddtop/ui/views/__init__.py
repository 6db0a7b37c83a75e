"""The views of the main screen: one room each, all shown and asked in the same way."""
