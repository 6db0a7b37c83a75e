"""What one rank does wrong: `FAULT` is empty, `sleep` or `raise`; it begins `FAULT_AFTER_S` later.

`at()` is called from a hook or callback of the user's in every step, so that the stack has the
framework's frames around it.
"""

from __future__ import annotations

import os
import time

BEGAN = time.monotonic()
RANK = int(os.environ.get("FAULT_RANK", "1"))
AFTER_S = float(os.environ.get("FAULT_AFTER_S", "15"))
STEP_S = 0.05


def over() -> bool:
    """The healthy part has lasted long enough; a faulty rank never gets here."""
    return time.monotonic() - BEGAN > float(os.environ.get("LASTS_S", "3600"))


def at(rank: int) -> None:
    """One step of the user's own; the fault of the rank that has one."""
    time.sleep(STEP_S)
    if rank != RANK or time.monotonic() - BEGAN < AFTER_S:
        return
    if os.environ.get("FAULT") == "sleep":
        time.sleep(3600)
    if os.environ.get("FAULT") == "raise":
        raise RuntimeError("planted")
