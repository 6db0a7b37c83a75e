"""Which launcher started a rank, from the part of its environment that its agent sends."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ddtop.launch import every_launcher

_OF_TORCHRUN = "TORCHELASTIC_"
"""People may set RANK and WORLD_SIZE by hand, but not these variables."""


def launcher_of(environ: Mapping[str, str]) -> str:
    """The name of the innermost launcher whose variables are set; empty if there is none."""
    if any(name.startswith(_OF_TORCHRUN) for name in environ):
        return "torchrun"
    others = [launcher for launcher in every_launcher() if launcher.name != "torchrun"]
    for launcher in others:
        if launcher.numbers(environ) is not None:
            return launcher.name
    for other in others:
        if other.sent and any(re.fullmatch(other.sent, name) for name in environ):
            return other.name
    return ""
