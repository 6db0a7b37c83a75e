"""Starts the job of a case, by its launcher or by another that fits it."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tools.benchmarks.stage import Stage, StageError, free_port
from zoo.case import MPIRUN, OWN, PLAIN, SPAWN, TORCHRUN, Case
from zoo.catalogue import cases_of
from zoo.rename import Renamed

SPAWNED = Path(__file__).parent / "spawned.py"
_AS_TORCHRUN = (
    "RANK=$OMPI_COMM_WORLD_RANK LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK"
    ' WORLD_SIZE=$OMPI_COMM_WORLD_SIZE exec "$0" "$@"'
)
"""How torch programs are started under mpirun: the launcher's names become torch's."""


def may_start(case: Case, launcher: str) -> bool:
    """Whether this launcher can start the case as well as its own."""
    if launcher == case.launcher:
        return True
    if OWN in (launcher, case.launcher) or case.restarts or case.act is not None:
        return False
    return case.launcher != MPIRUN


@dataclass(frozen=True)
class Started:
    """`program`: what runs, with a seed a renamed copy; `renamed`: a name's name in it."""

    program: Path
    renamed: Callable[[str], str]


def start(
    stage: Stage,
    case: Case,
    seed: int | None = None,
    launcher: str = "",
    more: Mapping[str, str] = MappingProxyType({}),
) -> Started:
    """Start the job.

    Args:
        stage: where the job lives.
        case: what to start.
        seed: names in the program are shuffled with it.
        launcher: instead of the case's.
        more: variables that a tool wants the job to have.

    Raises:
        StageError: this launcher is not installed.
    """
    started, words = prepare(stage, case, case.program, seed)
    program = started.program
    launcher = launcher or case.launcher
    environment = dict(case.environment) | dict(more)
    if launcher == PLAIN:
        stage.ranks(program, case.world, False, *words, **environment)
        return started
    command = [*_command(launcher, case), str(program), *words]
    if launcher in (MPIRUN, SPAWN):
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    stage.start(command, stage.environment(False, **environment), stage.output(0))
    return started


def prepare(stage: Stage, case: Case, program: Path, seed: int | None) -> tuple[Started, list[str]]:
    """The program that will run, and its arguments. `program` may be a changed copy."""
    words = [case.shape, *case.arguments]
    if seed is None:
        return Started(program, str), words
    shapes = {one.shape for one in cases_of(case.program)}
    copy = Renamed(program, shapes, seed, stage.home)
    return Started(copy.path, copy.name), [copy.name(word) for word in words]


def _command(launcher: str, case: Case) -> list[str]:
    python = sys.executable
    if launcher == OWN:
        return [python]
    if launcher == SPAWN:
        return [python, str(SPAWNED), str(case.world)]
    if launcher == TORCHRUN:
        torchrun = [python, "-m", "torch.distributed.run", "--standalone"]
        counts = ["--nproc-per-node", str(case.world), "--max-restarts", str(case.restarts)]
        return [*torchrun, *counts]
    beside = Path(python).with_name("mpirun")
    mpirun = str(beside) if beside.exists() else shutil.which("mpirun")
    if mpirun is None:
        raise StageError("mpirun is not installed")
    ranks = [mpirun, "--oversubscribe", "--allow-run-as-root", "-n", str(case.world)]
    return [*ranks, "sh", "-c", _AS_TORCHRUN, python]


def said(stage: Stage, word: str) -> list[int]:
    """The lines that the ranks have printed with that key."""
    outputs = range(len(stage.processes))
    return [one[word] for number in outputs for one in stage.said(number) if word in one]


def fault_began(stage: Stage, case: Case) -> int | None:
    """When the fault began, unix ns; None before that. Sends the signal of a case that has one."""
    if case.act is None:
        return min(said(stage, "fault_unix_ns"), default=None)
    if not said(stage, "ready"):
        return None
    stage.processes[0].send_signal(case.act)
    return time.time_ns()


def last_words(stage: Stage) -> str:
    """The end of what each process has printed, without the lines that are for the bench."""
    texts = []
    for path in sorted(stage.home.glob("rank*.out")):
        lines = path.read_text(errors="replace")[-1200:].splitlines()
        texts.append("\n".join(line for line in lines if not _is_json(line))[-600:])
    return "\n".join(texts)


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
