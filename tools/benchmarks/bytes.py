"""What a refresh of the dashboard sends to a terminal, and what it costs to find that out: by the
differ and by plain Textual.

The app runs without a terminal on a job of 64 ranks that changes in four ways; its updates go both
ways. To check by hand: `DDTOP_DIFFER=0 ddtop attach` under `script -q /dev/null | wc -c` sends what
the plain column says.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from rich.console import Console

from ddtop.follow.look import Look
from ddtop.model.facts import Snapshot, State
from ddtop.ui.app import DdtopApp
from ddtop.ui.terminal.differ import Differ
from tests.ui import builders
from tests.ui.changed import replace
from tools.benchmarks.table import Row, limited

SIZES = ((80, 24), (120, 40), (200, 50), (250, 70))
BARS_KB = {"all fields": 10.0, "hang": 1.0}
"""At 200x50."""
RANKS = 64
WARM = 3
"""Refreshes that are left out: the first ones still find their layout."""


@dataclass
class Sent:
    """Bytes and CPU of the updates of one refresh, one entry a refresh."""

    bytes: list[int] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)

    def begin(self) -> None:
        """Begin another refresh."""
        self.bytes.append(0)
        self.cpu_ms.append(0.0)

    def add(self, data: str, began_s: float) -> None:
        """One update of the screen."""
        self.cpu_ms[-1] += 1000 * (time.thread_time() - began_s)
        self.bytes[-1] += len(data.encode())


class Measured(DdtopApp):
    """Draws every update twice and discards the result."""

    def __init__(self, source: builders.FakeSource, width: int) -> None:
        super().__init__(cast(Any, source), builders.JOB, clock=lambda: builders.NOW)
        self.plain, self.small = Sent(), Sent()
        self.differ = Differ()
        self.into = Console(force_terminal=True, color_system="truecolor", width=width)

    def _display(self, screen: Any, renderable: Any) -> None:
        if hasattr(renderable, "render_segments") and self.plain.bytes:
            began = time.thread_time()
            self.plain.add(renderable.render_segments(self.into), began)
            began = time.thread_time()
            self.small.add(self.differ.encode(renderable, self.into), began)
        elif hasattr(renderable, "render_segments"):
            self.differ.encode(renderable, self.into)
        super()._display(screen, renderable)


def measure(refreshes: int) -> Iterator[Row]:
    """A row for each size and kind of change."""
    os.environ.setdefault("COLORTERM", "truecolor")
    for width, height in SIZES:
        for kind in ("all fields", "hang", "one row", "nothing"):
            plain, small = asyncio.run(_one((width, height), kind, refreshes))
            what = f"bytes a refresh, {width}x{height}, {kind}"
            detail = (
                f"plain Textual {statistics.mean(plain.bytes) / 1000:.2f} KB; CPU to encode"
                f" {statistics.mean(small.cpu_ms):.1f} ms, plain"
                f" {statistics.mean(plain.cpu_ms):.1f} ms"
            )
            size = statistics.mean(small.bytes) / 1000
            if (width, height) == (200, 50) and kind in BARS_KB:
                yield limited(what, size, BARS_KB[kind], "KB", detail, digits=2)
            else:
                yield Row(what, f"{size:.2f} KB", detail=detail)


async def _one(size: tuple[int, int], kind: str, refreshes: int) -> tuple[Sent, Sent]:
    source = builders.live(*builders.hang(RANKS))
    app = Measured(source, size[0])
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        if app._ticker is not None:
            app._ticker.stop()
        await pilot.pause()
        for number in range(1, refreshes + WARM + 1):
            if number == WARM + 1:
                app.plain, app.small = Sent(), Sent()
            snapshot = source.shown.snapshot
            assert snapshot is not None
            source.shown = Look(_changed(snapshot, kind, number), source.shown.verdict)
            app.plain.begin()
            app.small.begin()
            app.tick()
            await pilot.pause()
    assert app.differ.failure is None
    return app.plain, app.small


def _changed(snapshot: Snapshot, kind: str, number: int) -> Snapshot:
    if kind == "nothing":
        return snapshot
    if kind == "one row":
        ranks = tuple(
            replace(rank, progress={"iteration": 12_482 + number}) if rank.rank == 6 else rank
            for rank in snapshot.ranks
        )
        return replace(snapshot, ranks=ranks)
    if kind == "hang":
        aged = (
            replace(
                rank,
                comm={
                    "collective_age_s": (
                        None
                        if rank.comm.collective_age_s is None
                        else rank.comm.collective_age_s + 1
                    )
                },
            )
            for rank in snapshot.ranks
        )
        return replace(
            snapshot, ranks=tuple(aged), time_unix_ns=snapshot.time_unix_ns + builders.SECOND
        )
    return replace(
        snapshot, ranks=tuple(_other(rank, rank.rank + number * 37) for rank in snapshot.ranks)
    )


def _other(rank: Any, seed: int) -> Any:
    """The same rank with other values in all columns."""
    return replace(
        rank,
        state=State.RUNNING if seed % 2 else State.WAITING,
        progress={"iteration": seed * 7919 % 99_999, "step_ms": seed * 113 % 999 + 0.5},
        comm={
            "collective_age_s": float(seed * 13 % 60),
            "wait_ratio": seed * 7 % 100 / 100,
        },
        process={
            "cpu_ratio": seed * 17 % 100 / 100,
            "rss_bytes": seed * 5077 % 60_000 * 2**20,
        },
        agent={"report_age_s": seed % 10 / 10},
    )
