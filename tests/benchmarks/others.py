"""What other tools cost on the same workload, beside ddtop, each in pairs with a run without
anything.

In the default setting of each, as its documents say: traceml-ai by `traceml run` with `init` and
`trace_step` in the script, py-spy by `py-spy record --rate 10` around each rank. CPU is that of the
rank process, its threads included; processes beside it (relay, aggregator, py-spy itself) are not
in that number, py-spy's stands in the detail. The tools answer different questions: no ranking.
"""

from __future__ import annotations

import importlib.util
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks import procfs
from tests.benchmarks.cost import STEP_S, WORLD_SIZE
from tests.benchmarks.stage import WORKLOAD, Stage, StageError, free_port
from tests.benchmarks.table import Row, missing

RATE_HZ = 10
WARMUP_S = 120.0


@dataclass(frozen=True)
class Cost:
    """Mean of the ranks of one run; `beside_percent`: of a core, of the tool's own process a
    rank, None where not looked at.
    """

    cpu_ms: float
    core_percent: float
    wall_ms: float
    late_p99_ms: float
    beside_percent: float | None = None


def measure(pairs: int, seconds: float) -> Iterator[Row]:
    """Two rows a tool; tools that are not installed have one that says so."""
    for name, absent in (
        ("ddtop", None),
        ("traceml-ai", _no_traceml()),
        (f"py-spy record {RATE_HZ} Hz", _no_py_spy()),
    ):
        if absent is not None:
            yield missing(f"{name}, CPU a step", absent)
            continue
        try:
            yield from _rows(
                name, [_pair(name.split()[0], index, seconds) for index in range(pairs)]
            )
        except StageError as error:
            yield missing(f"{name}, CPU a step", str(error)[:1000])


def _no_traceml() -> str | None:
    return (
        None if importlib.util.find_spec("traceml_ai") else "not installed (pip install traceml-ai)"
    )


def _py_spy() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def _no_py_spy() -> str | None:
    return None if _py_spy() else "not installed (pip install py-spy)"


def _pair(tool: str, index: int, seconds: float) -> tuple[Cost, Cost]:
    """(without, with), side by side; which starts first alternates."""
    with Stage("others-off") as off, Stage("others-on") as on:
        for stage in (off, on) if index % 2 else (on, off):
            # Some tools take half a minute to start: both wait for each other before the first step
            # that counts.
            arguments = ("--steps", str(int(seconds / STEP_S)), "--gate", str(on.home / "gate"))
            if stage is off:
                stage.ranks(WORKLOAD, WORLD_SIZE, False, *arguments)
            else:
                _start(tool, stage, *arguments)
        for stage in (off, on):
            stage.wait_for("ranks", lambda stage=stage: _all_ready(stage), WARMUP_S)
        (on.home / "gate").touch()
        found = _finished(on, tool == "py-spy", WARMUP_S + 3 * seconds)
        return _finished(off, False, WARMUP_S + 3 * seconds), found


def _all_ready(stage: Stage) -> bool:
    return all(stage.output(rank).exists() and bool(stage.said(rank)) for rank in range(WORLD_SIZE))


def _start(tool: str, stage: Stage, *arguments: str) -> None:
    if tool == "ddtop":
        stage.ranks(WORKLOAD, WORLD_SIZE, True, *arguments)
        return
    if tool == "traceml-ai":
        command = [sys.executable, "-m", "traceml_ai.launcher.cli", "run", str(WORKLOAD)]
        command += ["--nproc-per-node", str(WORLD_SIZE), "--master-port", str(free_port())]
        command += ["--aggregator-port", str(free_port()), "--logs-dir", str(stage.home / "logs")]
        command += ["--args", *arguments, "--traceml", "--said", str(stage.home)]
        stage.start(command, stage.environment(False), stage.home / "launcher.out")
        return
    port = str(free_port())
    for rank in range(WORLD_SIZE):
        variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORLD_SIZE)}
        variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        command = [_py_spy() or "py-spy", "record", "--rate", str(RATE_HZ), "--format", "raw"]
        command += [
            "--output",
            str(stage.home / f"profile{rank}.txt"),
            "--",
            sys.executable,
            str(WORKLOAD),
        ]
        command += [*arguments, "--said", str(stage.home)]
        stage.start(command, stage.environment(False, **variables), stage.home / f"tool{rank}.out")


def _finished(stage: Stage, beside: bool, seconds: float) -> Cost:
    """What the run said in the end; meanwhile the CPU of the processes that were started, where
    they are not the ranks.
    """
    share = _beside(stage) if beside else None
    said = _last_lines(stage, seconds)
    return Cost(
        cpu_ms=statistics.mean(one["cpu_ms"] / one["steps"] for one in said),
        core_percent=statistics.mean(one["cpu_ms"] / one["wall_s"] / 10 for one in said),
        wall_ms=statistics.mean(one["wall_s"] / one["steps"] for one in said) * 1e3,
        late_p99_ms=statistics.mean(one["late_p99_ms"] for one in said),
        beside_percent=share,
    )


def _last_lines(stage: Stage, seconds: float) -> list[dict[str, Any]]:
    """What the ranks used; a launcher may work on its summary for long after that."""
    until = time.monotonic() + seconds
    while True:
        said = [
            stage.said(rank)[-1:] if stage.output(rank).exists() else []
            for rank in range(WORLD_SIZE)
        ]
        if all("steps" in one for lines in said for one in lines or [{}]):
            return [lines[0] for lines in said]
        if time.monotonic() > until or any(process.poll() for process in stage.processes):
            raise StageError(f"the ranks do not say what they used\n{stage.tails()}")
        time.sleep(0.5)


def _beside(stage: Stage) -> float | None:
    """Share of a core a process, from when the ranks are ready to the last look at which all
    were alive.
    """
    pids = [process.pid for process in stage.processes]
    began, before = time.monotonic(), sum(procfs.cpu_ns(pid) for pid in pids)
    share = None
    while all(process.poll() is None for process in stage.processes) and len(stage.said(0)) < 2:
        with suppress(OSError):
            share = (
                (sum(procfs.cpu_ns(pid) for pid in pids) - before)
                / (time.monotonic() - began)
                / 1e7
                / len(pids)
            )
        time.sleep(0.2)
    return share


def _rows(name: str, found: list[tuple[Cost, Cost]]) -> Iterator[Row]:
    steps = [on.cpu_ms - off.cpu_ms for off, on in found]
    cores = [on.core_percent - off.core_percent for off, on in found]
    walls = statistics.median(on.wall_ms - off.wall_ms for off, on in found)
    lates = statistics.median(on.late_p99_ms - off.late_p99_ms for off, on in found)
    beside = [on.beside_percent for _, on in found if on.beside_percent is not None]
    detail = (
        f"pairs {_list(steps)} ms; a step {walls:+.2f} ms longer, p99 lateness of its sleep"
        f" {lates:+.3f} ms"
    )
    detail += (
        f"; its own process {statistics.median(beside):.2f} % of a core a rank" if beside else ""
    )
    yield Row(f"{name}, CPU a step of a rank", f"{statistics.median(steps):+.3f} ms", detail=detail)
    yield Row(
        f"{name}, share of a core a rank",
        f"{statistics.median(cores):+.2f} %",
        detail=f"pairs {_list(cores)} %",
    )


def _list(values: list[float]) -> str:
    return " ".join(f"{value:+.3f}" for value in values)
