"""A Python in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from typing import Any


def python(*words: str, check: bool = True, **more: Any) -> subprocess.CompletedProcess[str]:
    """Runs Python with these words, and has its output as text once it has ended."""
    command = [sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=check, **more)
