"""All tests here use one time zone and one terminal."""

from tests.same_terminal import plain_environment

__all__ = ["plain_environment"]
