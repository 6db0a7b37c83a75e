"""Ranks that do not communicate: a step, a sleep, a dot every ten steps. No torch: the environment
makes the process a rank.
"""

from __future__ import annotations

import sys
import time

import ddtop


def main() -> None:
    """Run until ended by a signal; each step counts."""
    for number in range(10**9):
        time.sleep(0.02)
        ddtop.step()
        if number % 10 == 0:
            sys.stdout.write(".")
            sys.stdout.flush()


main()
