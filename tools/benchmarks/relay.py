"""What the relay costs a host: memory, and CPU over some seconds, with nobody looking and with
one viewer.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from ddtop import registry
from ddtop.link.rank_side import RankLink
from ddtop.wire import frames
from ddtop.wire.records import GroupProgress, Place, RankState
from tools.benchmarks import procfs
from tools.benchmarks.stage import HERE, PLAIN, WORKLOAD, Stage
from tools.benchmarks.table import Row, limited, spread

MEMORY_BAR_MIB, CPU_BAR_PERCENT = 60.0, 2.0
RANKS, TORCH_RANKS = 8, 4
SETTLE_S = 4.0
HALF_AN_HOUR_FRAMES = 2 * 1800 * RANKS


def measure(windows: int, seconds: float, with_torch: bool) -> Iterator[Row]:
    """Eight ranks without torch, then four that train."""
    with Stage("relay") as stage:
        stage.ranks(PLAIN, RANKS, True)
        entry = stage.entry(RANKS)
        time.sleep(SETTLE_S)
        yield from _window(entry, f"relay, {RANKS} ranks", windows, seconds)
        _attach_viewer(stage, entry)
        yield from _window(entry, f"relay, {RANKS} ranks and a viewer", windows, seconds)
        sent = _fill_history(entry)
        detail = (
            f"{sent} reports of 8 ranks sent at once: what half an hour brings; the history is"
            " bounded in bytes"
        )
        yield _memory(entry, "relay memory, its history full", detail)
    if with_torch:
        with Stage("relay-torch") as stage:
            stage.ranks(WORKLOAD, TORCH_RANKS, True)
            entry = stage.entry(TORCH_RANKS)
            stage.wait_for("training", lambda: stage.said(0))
            time.sleep(SETTLE_S)
            yield from _window(entry, f"relay, {TORCH_RANKS} torch ranks", windows, seconds)


def _window(entry: registry.JobEntry, what: str, windows: int, seconds: float) -> Iterator[Row]:
    shares = []
    for _ in range(windows):
        began, before = time.monotonic(), procfs.cpu_ns(entry.relay_pid)
        time.sleep(seconds)
        used_ns = procfs.cpu_ns(entry.relay_pid) - before
        shares.append(used_ns / (time.monotonic() - began) / 1e7)
    yield limited(
        f"{what}: CPU",
        statistics.median(shares),
        CPU_BAR_PERCENT,
        "% of a core",
        f"windows of {seconds:.0f} s: {spread(shares, '%', 2)}",
        digits=2,
    )
    yield _memory(entry, f"{what}: memory")


def _memory(entry: registry.JobEntry, what: str, detail: str = "") -> Row:
    found = procfs.memory_mib(entry.relay_pid)
    text = f"RSS; private {found['private']:.1f} MiB{'; ' if detail else ''}{detail}"
    return limited(what, found["rss"], MEMORY_BAR_MIB, "MiB", text, digits=1)


def _attach_viewer(stage: Stage, entry: registry.JobEntry) -> subprocess.Popen[bytes]:
    """A process that follows the job as the dashboard does, without drawing."""
    command = [sys.executable, "-m", "tools.benchmarks.viewer", entry.job, str(1e6)]
    root = str(HERE.parents[1])
    viewer = stage.start(
        command, stage.environment(False, PYTHONPATH=root), stage.home / "viewer.out"
    )
    stage.wait_for("viewer", lambda: "live" in Path(stage.home / "viewer.out").read_text())
    return viewer


def _fill_history(entry: registry.JobEntry) -> int:
    """Send as many reports as half an hour has, as fast as the relay takes them."""
    link = RankLink(Path(entry.socket))
    group = GroupProgress("0", 123456, 123455, 0, time.time_ns(), "all_reduce")
    place = Place(
        "train_step",
        "/home/ada/experiments/train.py",
        140,
        "collective",
        time.time_ns(),
        "all_reduce",
    )
    sent = 0
    try:
        while sent < HALF_AN_HOUR_FRAMES:
            state = RankState(
                phase="running",
                activity="collective",
                iteration=sent,
                iteration_source="optimizer",
                step_ms=23.456,
                groups=(group,),
                wait_samples=sent,
                all_samples=sent,
                activity_samples=(sent,) * 7,
                place=place,
                progress_unix_ns=time.time_ns(),
                healthy_wait_max_ms=12.345,
                agent_cpu_ns=time.time_ns(),
            )
            data = frames.seal(
                state,
                sender=entry.sender,
                unix_ns=time.time_ns(),
                mono_ns=time.monotonic_ns(),
                rank=sent % RANKS,
                pid=os.getpid(),
            )
            while not link.send(data):
                time.sleep(0.001)
            sent += 1
        time.sleep(1.0)
    finally:
        link.close()
    return sent
