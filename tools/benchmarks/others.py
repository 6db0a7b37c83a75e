"""What other tools cost on the same workload, beside ddtop and a thread that does nothing, each
paired with a run without anything over the same seconds.

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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.benchmarks import procfs
from tools.benchmarks.cost import STEP_S, WORLD_SIZE
from tools.benchmarks.stage import WORKLOAD, Stage, StageError, free_port
from tools.benchmarks.table import Row, missing, spread

NOTHING = "nothing"
RATE_HZ = 10
WARMUP_S = 120.0


@dataclass(frozen=True)
class Cost:
    """Mean of the ranks of one run. `beside_percent`: percent of a core that the tool's own process
    uses per rank; None where it is not measured.
    """

    cpu_ms: float
    core_percent: float
    wall_ms: float
    late_p99_ms: float
    beside_percent: float | None = None


def measure(pairs: int, seconds: float, workers: int | None) -> Iterator[Row]:
    """Two rows a tool; tools that are not installed have one that says so. `workers`: of the
    DataLoader, None without one.
    """
    kind = "" if workers is None else f", DataLoader with {workers} workers"
    tools = []
    for name, absent in (
        ("ddtop", None),
        ("an idle thread", None),
        ("traceml-ai", _no_traceml()),
        (f"py-spy record {RATE_HZ} Hz", _no_py_spy()),
    ):
        if absent is None:
            tools.append(name)
        else:
            yield missing(f"{name}, CPU a step{kind}", absent)
    try:
        found = [_run(tools, index, seconds, workers) for index in range(pairs)]
    except StageError as error:
        yield missing(f"other tools{kind}", str(error)[:1000])
        return
    for name in tools:
        yield from _rows(name, kind, [(one[NOTHING], one[name]) for one in found])


def _no_traceml() -> str | None:
    return (
        None if importlib.util.find_spec("traceml_ai") else "not installed (pip install traceml-ai)"
    )


def _py_spy() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def _no_py_spy() -> str | None:
    return None if _py_spy() else "not installed (pip install py-spy)"


def _run(tools: list[str], index: int, seconds: float, workers: int | None) -> dict[str, Cost]:
    """The workload without anything and with each tool, all side by side over the same seconds;
    the order in which they start turns from run to run.
    """
    names = [NOTHING, *tools]
    turn = index % len(names)
    with ExitStack() as open_stages:
        stages = {
            name: open_stages.enter_context(Stage(f"others-{number}"))
            for number, name in enumerate(names)
        }
        # Some tools take half a minute to start: all wait for each other before the first step that
        # counts.
        gate = stages[NOTHING].home / "gate"
        arguments = ["--steps", str(int(seconds / STEP_S)), "--gate", str(gate)]
        if workers is not None:
            arguments += ["--workers", str(workers)]
        for name in names[turn:] + names[:turn]:
            _start(name, stages[name], *arguments)
        for stage in stages.values():
            stage.wait_for("ranks", lambda stage=stage: _all_ready(stage), WARMUP_S)
        gate.touch()
        beside = _Beside({name: one for name, one in stages.items() if name.startswith("py-spy")})
        beside.watch(lambda: all(_has_ended(stage) for stage in stages.values()), 3 * seconds)
        return {
            name: _finished(stage, beside.share(name), WARMUP_S + 3 * seconds)
            for name, stage in stages.items()
        }


def _all_ready(stage: Stage) -> bool:
    return all(stage.output(rank).exists() and bool(stage.said(rank)) for rank in range(WORLD_SIZE))


def _start(tool: str, stage: Stage, *arguments: str) -> None:
    if tool in (NOTHING, "ddtop", "an idle thread"):
        more = ["--idle-thread"] if tool == "an idle thread" else []
        stage.ranks(WORKLOAD, WORLD_SIZE, tool == "ddtop", *arguments, *more)
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


def _finished(stage: Stage, beside_percent: float | None, seconds: float) -> Cost:
    """The last lines that the run printed."""
    said = _last_lines(stage, seconds)
    return Cost(
        cpu_ms=statistics.mean(one["cpu_ms"] / one["steps"] for one in said),
        core_percent=statistics.mean(one["cpu_ms"] / one["wall_s"] / 10 for one in said),
        wall_ms=statistics.mean(one["wall_s"] / one["steps"] for one in said) * 1e3,
        late_p99_ms=statistics.mean(one["late_p99_ms"] for one in said),
        beside_percent=beside_percent,
    )


def _has_ended(stage: Stage) -> bool:
    return all(len(stage.said(rank)) > 1 for rank in range(WORLD_SIZE))


def _last_lines(stage: Stage, seconds: float) -> list[dict[str, Any]]:
    """What the ranks used. A launcher may work on its summary for long after the ranks have
    ended.
    """
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


class _Beside:
    """CPU of the tool's own processes, without the ranks: from the moment when the ranks are
    ready to the last look at which all were alive.
    """

    def __init__(self, stages: dict[str, Stage]) -> None:
        self._processes = {name: stage.processes for name, stage in stages.items()}
        self._began = time.monotonic()
        self._before = {name: self._used_ns(name) for name in self._processes}
        self._shares: dict[str, float] = {}

    def watch(self, over: Callable[[], bool], seconds: float) -> None:
        """Look until `over`, but no longer than this."""
        until = time.monotonic() + seconds
        while not over() and time.monotonic() < until:
            for name, processes in self._processes.items():
                if any(process.poll() is not None for process in processes):
                    continue
                with suppress(OSError):
                    used_ns = self._used_ns(name) - self._before[name]
                    passed_s = time.monotonic() - self._began
                    self._shares[name] = used_ns / passed_s / 1e7 / len(processes)
            time.sleep(0.5)

    def share(self, name: str) -> float | None:
        """Percent of a core per process."""
        return self._shares.get(name)

    def _used_ns(self, name: str) -> int:
        return sum(procfs.cpu_ns(one.pid) for one in self._processes[name])


def _rows(name: str, kind: str, found: list[tuple[Cost, Cost]]) -> Iterator[Row]:
    steps = [on.cpu_ms - off.cpu_ms for off, on in found]
    cores = [on.core_percent - off.core_percent for off, on in found]
    walls = statistics.median(on.wall_ms - off.wall_ms for off, on in found)
    lates = statistics.median(on.late_p99_ms - off.late_p99_ms for off, on in found)
    beside = [on.beside_percent for _, on in found if on.beside_percent is not None]
    detail = (
        f"{spread(steps, 'ms')}\na step {walls:+.2f} ms longer, p99 lateness of its sleep"
        f" {lates:+.3f} ms"
    )
    detail += (
        f"; its own process {statistics.median(beside):.2f} % of a core a rank" if beside else ""
    )
    median = f"{statistics.median(steps):+.3f} ms"
    yield Row(f"{name}, CPU a step of a rank{kind}", median, detail=detail)
    yield Row(
        f"{name}, share of a core a rank{kind}",
        f"{statistics.median(cores):+.2f} %",
        detail=spread(cores, "%"),
    )
