"""Waiting for what another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(question: Callable[[], T], within_s: float = 20.0) -> T:
    """Its first true answer. It is asked again and again."""
    end = time.monotonic() + within_s
    while not (answer := question()):
        assert time.monotonic() < end, answer
        time.sleep(0.005)
    return answer
