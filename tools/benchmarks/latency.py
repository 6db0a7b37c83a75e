"""Seconds from a fault to its name on a viewer's screen, on a real training of four ranks."""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Iterator

from ddtop import registry
from tools.benchmarks.stage import WORKLOAD, Stage, StageError
from tools.benchmarks.table import Row, limited
from tools.benchmarks.viewer import follow

BAR_S = 10.0
RANKS, CULPRIT = 4, 2
GIVE_UP_S = 30.0
HEALTHY_S = 4.0
FAULTS = (
    ("asleep instead of a collective", "not-in-collective", None),
    ("SIGKILL", "rank-killed", signal.SIGKILL),
    ("SIGSTOP", "rank-stopped", signal.SIGSTOP),
)


def measure(times: int) -> Iterator[Row]:
    """One row a fault; the longest counts."""
    for what, kind, number in FAULTS:
        found = [_once(kind, number) for _ in range(times)]
        detail = (
            f"longest of {times}; median {statistics.median(found):.1f} s; named: {kind}, rank"
            f" {CULPRIT}"
        )
        yield limited(f"verdict: {what}", max(found), BAR_S, "s", detail, digits=1)


def _once(kind: str, number: int | None) -> float:
    with Stage("fault") as stage:
        arguments = ["--sleeper", str(CULPRIT)] if number is None else []
        processes = stage.ranks(WORKLOAD, RANKS, True, *arguments)
        entry = stage.entry(RANKS)
        stage.wait_for("training", lambda: stage.said(0))
        began = 0
        if number is not None:
            time.sleep(HEALTHY_S)
            began = time.time_ns()
            os.kill(processes[CULPRIT].pid, number)
        named = _named(entry, kind)
        if number is None:
            began = next(
                one["fault_unix_ns"] for one in stage.said(CULPRIT) if "fault_unix_ns" in one
            )
        return (named - began) / 1e9


def _named(entry: registry.JobEntry, kind: str) -> int:
    """When the viewer shows that finding about that rank, and no other rank as the culprit; unix
    ns.
    """
    last = "nothing"
    for _, verdict in follow(entry, GIVE_UP_S):
        critical = [one for one in verdict.findings if one.severity == "critical"]
        if any(one.kind == kind and tuple(one.ranks) == (CULPRIT,) for one in critical):
            return time.time_ns()
        last = "; ".join(f"{one.kind} {one.ranks}" for one in critical) or last
    raise StageError(
        f"no {kind} about rank {CULPRIT} within {GIVE_UP_S:.0f} s; the viewer says {last}"
    )
