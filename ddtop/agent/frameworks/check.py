"""Checks whether the installed frameworks still have what ddtop reads.

`ddtop doctor` runs this in a child process, because it imports them.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from importlib.util import find_spec

from ddtop.agent.sources import SOURCES, ProbeRow

NO_FRAMEWORKS = ("torch", "tqdm")


def lines() -> Iterator[str]:
    """`ok|NAME|VERSION` or `off|NAME|REASON` for each framework that is installed."""
    for source in SOURCES:
        root = (source.after or "").partition(".")[0]
        reads = not source.file.startswith("ddtop.") or ".frameworks." in source.file
        if not reads or root in NO_FRAMEWORKS or find_spec(root) is None:
            continue
        reason = why_not_wrapped(source)
        version = getattr(importlib.import_module(root), "__version__", "") if not reason else ""
        yield f"off|{source.name}|{reason}" if reason else f"ok|{source.name}|{version}"


def why_not_wrapped(source: ProbeRow) -> str:
    """Why its functions cannot be wrapped; empty: they can."""
    try:
        module = importlib.import_module(source.after or "")
        source.load(source.wrap)(module)
    except Exception as error:  # noqa: BLE001 - any error of a framework is the answer
        return " ".join(f"{type(error).__name__}: {error}".split())[:160]
    return ""
