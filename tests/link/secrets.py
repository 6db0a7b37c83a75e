"""The key that the tests of links share."""

SECRET = b"0123456789abcdef"


DEADLINE_S = 10.0
