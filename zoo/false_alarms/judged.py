"""Warnings about healthy jobs that are true, and why: somebody who reads them is not misled.

Anything that is not here counts as a false alarm.
"""

from __future__ import annotations

from typing import Any

SLOW_LOADER = ("first_epoch", "mixed")
WORKS_ALONE = (
    "autotune",
    "checkpoint_on_all",
    "checkpoint_on_one",
    "compile_again",
    "evaluation",
    "evaluation_on_one",
    "mixed",
    "slow_files",
)


def reason_of(recording: str, alarm: dict[str, Any]) -> str | None:
    """Why this warning is true; None if it is not."""
    kind, summary = alarm["kind"], alarm["summary"]
    if alarm["severity"] != "warning":
        return None
    if kind == "input-bound" and recording in SLOW_LOADER:
        return "the first epoch fills a cache, and the ranks do wait for their data"
    if kind == "not-in-collective" and recording in WORKS_ALONE and "still working" in summary:
        return "some ranks do work alone for longer than before, and the others wait"
    return None
