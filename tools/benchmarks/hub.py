"""What 10,000 ranks on 1,250 hosts cost the relay of rank 0's host, at one report a second of each
rank.

The first host is real: eight ranks without torch, and the relay that their agents start. All other
relays are played by one process (`leaves`), each with a connection of its own; all of them connect
at the same moment.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ddtop.sim.fleet import LOCAL_SIZE
from tools.benchmarks import procfs
from tools.benchmarks.stage import HERE, PLAIN, Stage, StageError, free_port
from tools.benchmarks.table import Row, limited

RANKS = 10_000
CPU_BAR, JOIN_BAR_S, ENLIST_BAR_S, GROWTH_BAR_MIB, MEMORY_BAR_MIB = 0.5, 2.0, 5.0, 16.0, 300.0
SETTLE_S, COME_S = 10.0, 120.0
JOINS = 3
LATE_S = 2.0
"""Whoever plays the hosts is behind by more: the hub had less to do than is said."""


def measure(seconds: float, ranks: int = RANKS) -> Iterator[Row]:
    """Rows for that many ranks. `seconds`: how long the relay is measured without a viewer, and
    again with one.
    """
    with Stage(f"sim-{ranks}") as stage:
        pid = _hub(stage, ranks, port := free_port())
        leaves = _start(stage, "leaves", str(ranks), str(port))
        told = stage.wait_for("hosts at the hub", lambda: _lines(leaves), COME_S)[0]
        text = f"all at the same moment; {told['enlisted']} hosts"
        yield limited(
            f"{ranks:,} ranks: hosts enlisted", told["seconds"], ENLIST_BAR_S, "s", text, digits=1
        )
        time.sleep(SETTLE_S)
        alone: list[float] = []
        yield from _window(pid, f"{ranks:,} ranks: hub CPU", seconds, alone, leaves)
        joins = [_join(stage) for _ in range(JOINS)]
        longest = max(joins, key=lambda one: one["joined_s"])
        detail = (
            ", ".join(f"{one['joined_s']:.2f} s" for one in joins)
            + f"; {longest['frames']} frames, {longest['mib']:.0f} MiB of {longest['ranks']}"
            " ranks, "
            f"then {longest['look_s']:.2f} s until they are taken in and judged"
        )
        yield limited("a viewer joins", longest["joined_s"], JOIN_BAR_S, "s", detail, digits=2)
        viewer = _start(stage, "joiner", stage.name, str(seconds + 2.0))
        stage.wait_for("viewer", lambda: _lines(viewer))
        followed: list[float] = []
        yield from _window(pid, f"{ranks:,} ranks, one viewer: hub CPU", seconds, followed, leaves)
        seen = stage.wait_for("what the viewer saw", lambda: _lines(viewer)[1:])[0]
        sent = _lines(leaves)[-1]
        detail = (
            f"{seen['frames_per_s']:.0f} frames a second, {seen['mib_per_s']:.1f} MiB a second;"
            f" dropped: {seen['dropped']} by the hub, {sent['dropped']} by all hosts;"
            f" {seen['leaves']} of {told['enlisted']} are connected"
        )
        yield Row(
            "reports that reach a viewer", f"{seen['states_per_s']:.0f} a second", detail=detail
        )
        yield from _memory("nobody looks", alone)
        yield from _memory("one viewer", followed)


def _hub(stage: Stage, ranks: int, port: int) -> int:
    """Start the real ranks; the pid of their relay."""
    for rank in range(LOCAL_SIZE):
        place = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": ranks,
            "LOCAL_WORLD_SIZE": LOCAL_SIZE,
        }
        more = {name: str(value) for name, value in place.items()}
        environment = stage.environment(
            True,
            **more,
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port - 1),
            DDTOP_HUB=f"127.0.0.1:{port}",
        )
        stage.start([sys.executable, str(PLAIN)], environment, stage.output(rank))
    return stage.entry(LOCAL_SIZE).relay_pid


def _start(stage: Stage, module: str, *arguments: str) -> Path:
    output = stage.home / f"{module}-{time.monotonic_ns()}.out"
    environment = stage.environment(False, PYTHONPATH=str(HERE.parents[1]))
    stage.start(
        [sys.executable, "-m", f"tools.benchmarks.{module}", *arguments], environment, output
    )
    return output


def _lines(path: Path) -> list[dict[str, Any]]:
    whole = path.read_text().rpartition("\n")[0].splitlines()
    try:
        return [json.loads(line) for line in whole]
    except json.JSONDecodeError:
        raise StageError(path.read_text()[-1000:]) from None


def _join(stage: Stage) -> dict[str, Any]:
    joiner = _start(stage, "joiner", stage.name, "0")
    found: dict[str, Any] = stage.wait_for("viewer that joins", lambda: _lines(joiner))[0]
    return found


def _window(pid: int, what: str, seconds: float, sizes: list[float], leaves: Path) -> Iterator[Row]:
    before, began = _threads_ns(pid), time.monotonic()
    sent = _lines(leaves)[-1]["sent"]
    while (left := seconds - (time.monotonic() - began)) > 0:
        sizes.append(procfs.memory_mib(pid)["rss"])
        time.sleep(min(left, 1.0))
    spent = time.monotonic() - began
    threads = {
        name: (ns - before.get(name, 0)) / spent / 1e9 for name, ns in _threads_ns(pid).items()
    }
    last = _lines(leaves)[-1]
    shares = ", ".join(
        f"{name} {share:.2f}" for name, share in sorted(threads.items()) if share >= 0.005
    )
    detail = (
        f"over {spent:.0f} s: {shares}; {(last['sent'] - sent) / spent:.0f} records a second were"
        " played"
    )
    row = limited(what, sum(threads.values()), CPU_BAR, "cores", detail, digits=2)
    if last["late_s"] > LATE_S:
        text = f"{detail}: {last['late_s']:.0f} s late, this machine is too busy to play so many"
        row = Row(what, row.measured, row.bar, None, text)
    yield row


def _threads_ns(pid: int) -> dict[str, int]:
    """CPU time of all threads that are alive, by name: the loop, ZeroMQ's thread, and the
    others, such as the journal's.
    """
    found: dict[str, int] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        name = (task / "comm").read_text().strip()
        name = "loop" if task.name == str(pid) else "ZeroMQ" if name.startswith("ZMQ") else "others"
        found[name] = found.get(name, 0) + int((task / "schedstat").read_text().split()[0])
    return found


def _memory(when: str, sizes: list[float]) -> Iterator[Row]:
    part = max(len(sizes) // 4, 1)
    grown = sum(sizes[-part:]) / part - sum(sizes[:part]) / part
    detail = (
        "RSS: " + ", ".join(f"{size:.0f}" for size in sizes[:: max(len(sizes) // 8, 1)]) + " MiB"
    )
    yield limited(f"hub memory, {when}", max(sizes), MEMORY_BAR_MIB, "MiB", detail, digits=0)
    yield limited(
        f"hub memory grown, {when}",
        grown,
        GROWTH_BAR_MIB,
        "MiB",
        "first to last quarter of the time",
        digits=1,
    )


def main() -> None:
    """`python -m tools.benchmarks.hub RANKS SECONDS`: by itself."""
    from tools.benchmarks import table

    print(
        table.shown(measure(float(sys.argv[2]), int(sys.argv[1]))),
        f"\nload average {os.getloadavg()[0]:.1f}",
    )


if __name__ == "__main__":
    main()
