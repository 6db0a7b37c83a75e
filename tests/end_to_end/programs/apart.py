"""Ranks that need nothing of each other: a step, a sleep, a dot every ten steps. No torch: a
rank by its environment.
"""

from __future__ import annotations

import sys
import time

import ddtop


def main() -> None:
    """Until somebody ends us; each step counts."""
    for number in range(10**9):
        time.sleep(0.02)
        ddtop.step()
        if number % 10 == 0:
            sys.stdout.write(".")
            sys.stdout.flush()


main()
