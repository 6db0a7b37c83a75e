"""Silences Python's warning about forks if the only other thread is ours.

Since 3.12 `os.fork` warns in a process with more than one thread. If the only other thread is the
agent's, the warning would be wrong. If the program has other threads, it gets the warning as usual.
Since 3.13 the warning comes after the last hook in the parent, so the agent's next tick removes the
filter. Only our own entry is removed, whatever the program does to its filters meanwhile.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from typing import Any

OWN_THREADS = 1
"""The agent's."""
_WARNS = tuple(sys.version_info) >= (3, 12)
_FILTER: Any = ("ignore", re.compile(".*multi-threaded, use of fork"), DeprecationWarning, None, 0)


class ForkWarning:
    """Silences the warning: `begin` before a fork, `end` in the child and at the next tick."""

    def __init__(self) -> None:
        self._silent = False

    def begin(self) -> None:
        """Silence the warning if the only other thread is ours."""
        if self._silent or not _WARNS or len(os.listdir("/proc/self/task")) > 1 + OWN_THREADS:
            return
        self._silent = True
        warnings.filters.insert(0, _FILTER)  # type: ignore[attr-defined]  # a list; typed as a sequence

    def end(self) -> None:
        """Restore the program's filters."""
        if self._silent:
            self._silent = False
            if _FILTER in warnings.filters:
                warnings.filters.remove(_FILTER)  # type: ignore[attr-defined]
