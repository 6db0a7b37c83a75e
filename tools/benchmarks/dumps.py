"""Stacks of eight ranks: the time from the key to the merged text, and what the requests cost a
busy rank.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

from ddtop import registry
from ddtop.feeds.route import request
from ddtop.model.stacks import merge
from ddtop.relay.requests import EVERY_S
from ddtop.wire import frames
from ddtop.wire.records import BY_SIGNAL, Command, Reply, Stacks
from tests.viewers import ViewerLink
from tools.benchmarks.stage import HERE, Stage, StageError
from tools.benchmarks.table import Row, limited

RANKS = 8
AGENTS_BAR_S, SIGNAL_BAR_S, PAUSE_BAR_MS = 0.3, 2.0, 10.0
SCRIPT = HERE / "dump_rank.py"
SETTLE_S, GIVE_UP_S = 3.0, 20.0
FLOOD_S, FLOOD_BAR_RATIO = 8.0, 1.5


def measure(times: int) -> Iterator[Row]:
    """Dumps by the agents, with one rank that only a signal reaches, and the pause in a rank."""
    with Stage("dumps") as stage:
        stage.ranks(SCRIPT, RANKS, True)
        yield _latency(
            stage.entry(RANKS),
            f"stacks of {RANKS} ranks, by their agents",
            AGENTS_BAR_S,
            times,
            {"agent"},
        )
    with Stage("dumps-gil") as stage:
        stage.ranks(SCRIPT, RANKS, True, f"gil{RANKS - 1}")
        entry = stage.entry(RANKS)
        stage.wait_for("held GIL", lambda: stage.said(RANKS - 1))
        time.sleep(SETTLE_S)
        yield _latency(
            entry,
            f"stacks of {RANKS} ranks, one holds the GIL",
            SIGNAL_BAR_S,
            times,
            {"agent", "signal"},
        )
    with Stage("dumps-pause") as stage:
        stage.ranks(SCRIPT, 1, True, "busy")
        yield from _pause(stage, times)
    with Stage("dumps-flood") as stage:
        stage.ranks(SCRIPT, 1, True, "busy")
        yield from _flood(stage)


def _flood(stage: Stage) -> Iterator[Row]:
    """A rank whose loop counts its iterations, before and while a viewer asks for its stacks as
    fast as it can.
    """
    viewer = _Viewer(stage.entry(1))
    try:
        calm_ns = time.monotonic_ns()
        time.sleep(FLOOD_S)
        flood_ns = time.monotonic_ns()
        asked, taken = viewer.flood(FLOOD_S)
        over_ns = time.monotonic_ns()
    finally:
        viewer.close()
    stage.wait_for("windows", lambda: stage.said(0)[-1]["to"] > over_ns)
    rates = {
        when: statistics.median(
            one["turns"] for one in stage.said(0) if first <= one["from"] and one["to"] <= last
        )
        for when, first, last in (("calm", calm_ns, flood_ns), ("flood", flood_ns, over_ns))
    }
    detail = (
        f"{asked} requests in {FLOOD_S:g} s made {taken} dumps; the median window of a busy loop"
        " while they came, by one before"
    )
    yield limited(
        "a flood of requests: calm / flood",
        rates["calm"] / rates["flood"],
        FLOOD_BAR_RATIO,
        "",
        detail,
        2,
    )


class _Viewer:
    """A viewer that asks for stacks and waits for all of them."""

    def __init__(self, entry: registry.JobEntry) -> None:
        self._link = ViewerLink(entry.address, entry.port, registry.secret(), controller=True)
        self._link.send(request(Command("join")))
        self._asked = 0
        for data in self._link.receive(GIVE_UP_S):
            record = frames.open_record(frames.open_envelope(data))
            if isinstance(record, Reply) and record.name == "live":
                return
        raise StageError("the relay does not answer")

    def ask(self, how: str = "") -> list[Stacks]:
        """The answers of all ranks. `how`: BY_SIGNAL or empty."""
        self._asked += 1
        name, expected, found = f"bench-{self._asked}", None, []
        self._link.send(request(Command("stacks", arguments=(name, "", how))))
        for data in self._link.receive(GIVE_UP_S):
            record = frames.open_record(frames.open_envelope(data))
            if isinstance(record, Reply) and record.name == "stacks":
                expected = record.count
            elif isinstance(record, Stacks) and record.request == name and not record.worker:
                found.append(record)
            if expected is not None and len(found) >= expected:
                return found
        raise StageError(f"{len(found)} of {expected} ranks answered")

    def flood(self, seconds: float) -> tuple[int, int]:
        """Send requests without waiting for answers. Returns (requests sent, dumps that
        resulted).
        """
        end, asked, dumps = time.monotonic() + seconds, 0, set()
        while time.monotonic() < end:
            asked += 1
            self._link.send(request(Command("stacks", arguments=(f"flood-{asked}", "", ""))))
            for data in self._link.receive(0.001):
                record = frames.open_record(frames.open_envelope(data))
                if isinstance(record, Stacks):
                    dumps.add(record.taken_unix_ns)
        return asked, len(dumps)

    def close(self) -> None:
        """Leave."""
        self._link.close()


def _latency(
    entry: registry.JobEntry, what: str, bar_s: float, times: int, methods: set[str]
) -> Row:
    viewer = _Viewer(entry)
    try:
        took = []
        for _ in range(times):
            began = time.monotonic()
            answers = viewer.ask(BY_SIGNAL if "signal" in methods else "")
            merge(answers)
            took.append(time.monotonic() - began)
            if {one.method for one in answers} != methods:
                raise StageError(f"answered {[(one.method, one.why) for one in answers]}")
            time.sleep(EVERY_S)
    finally:
        viewer.close()
    detail = (
        f"key to merged, longest of {times}; median {statistics.median(took):.3f} s; the screen"
        " adds up to 0.5 s"
    )
    return limited(what, max(took), bar_s, "s", detail, digits=3)


def _pause(stage: Stage, times: int) -> Iterator[Row]:
    """Windows of a quarter of a second with a dump, beside windows of the same rank without one."""
    viewer = _Viewer(stage.entry(1))
    asked, told = [], []
    try:
        for _ in range(times):
            time.sleep(EVERY_S + 0.1)
            asked.append(time.monotonic_ns())
            told += [one.pause_ns or 0 for one in viewer.ask()]
    finally:
        viewer.close()
    stage.wait_for("windows", lambda: stage.said(0)[-1]["to"] > asked[-1])
    windows = stage.said(0)
    within = [
        one["longest_ns"] / 1e6
        for one in windows
        if any(one["from"] <= at <= one["to"] for at in asked)
    ]
    without = [
        one["longest_ns"] / 1e6
        for one in windows
        if not any(one["from"] <= at <= one["to"] for at in asked)
    ]
    detail = (
        f"median longest gap of a busy loop in {len(within)} windows with a dump"
        f" {statistics.median(within):.1f}, in {len(without)} without one"
        f" {statistics.median(without):.1f}; the longest of all {max(within):.1f} and"
        f" {max(without):.1f}"
    )
    paired = statistics.median(within) - statistics.median(without)
    yield limited(
        "pause of a busy rank by a dump, on - off", paired, PAUSE_BAR_MS, "ms", detail, digits=1
    )
    held = (
        f"longest of {len(told)}: eight threads, forty frames deep; while it lasts the others wait"
        " for the GIL"
    )
    yield limited(
        "pause as the rank's agent measured it", max(told) / 1e6, PAUSE_BAR_MS, "ms", held, digits=2
    )
