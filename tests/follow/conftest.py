"""All tests here use one time zone and one terminal."""

from __future__ import annotations

from tests.same_terminal import plain_environment

__all__ = ["plain_environment"]
