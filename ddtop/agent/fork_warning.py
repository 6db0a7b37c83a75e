"""Keeps Python's warning about forks from speaking of our threads.

Since 3.12 `os.fork` warns in a process with more than one thread. Where all threads but the forking one are the agent's,
the program has done nothing to be warned of; where it has threads of its own, it is warned as ever. Since 3.13 the warning
comes after the last hook in the parent, so the filter is taken out by the agent's next tick; only our own entry is
touched, whatever the program does to its filters meanwhile.
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
    """The silence around forks: `begin` before one, `end` in the child and at the agent's next tick."""

    def __init__(self) -> None:
        self._silent = False

    def begin(self) -> None:
        """Silence the warning if it could only be about us."""
        if self._silent or not _WARNS or len(os.listdir("/proc/self/task")) > 1 + OWN_THREADS:
            return
        self._silent = True
        warnings.filters.insert(0, _FILTER)  # type: ignore[attr-defined]  # a list; typed as a sequence

    def end(self) -> None:
        """The program's own filters again."""
        if self._silent:
            self._silent = False
            if _FILTER in warnings.filters:
                warnings.filters.remove(_FILTER)  # type: ignore[attr-defined]
