"""The key that the tests of links share."""

from __future__ import annotations

SECRET = b"0123456789abcdef"


DEADLINE_S = 10.0
