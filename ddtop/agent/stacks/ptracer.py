"""Leave for the relay to look into this process with py-spy, where Yama allows that only to ancestors."""

from __future__ import annotations

import ctypes
from pathlib import Path

_PR_SET_PTRACER = 0x59616D61
_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")


def allow(pid: int) -> None:
    """Name `pid` (and its children) as the one who may trace us; nothing where there is no Yama. Never anybody else."""
    if pid > 1 and _SCOPE.exists():
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)
