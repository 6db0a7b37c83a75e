"""py-spy by hand: all ranks are dumped twice, and read by a fixed rule.

The rule is what a person does who knows distributed training and nothing of this program:

1. Dump the main thread of each rank twice, two seconds apart. If every stack has changed, the job
   moves: nothing is wrong.
2. A process that is stopped (`T` in ps) is the culprit.
3. If a rank's process is gone while others are there, it is the culprit.
4. A rank is in communication if a frame of its stack is in torch.distributed, in the backward of
   DDP, or in mpi4py, or the innermost is in DDP itself, which broadcasts buffers there. If some are
   and some are not, those that are not are the culprits.
5. If all are, ranks are put together that stand at the same line of the program. The smallest class
   are the culprits; if two are equally small, py-spy does not tell.

The place is the innermost line of the program in the culprit's stack.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.benchmarks.stage import Stage
from zoo.case import Case
from zoo.start import Started, start
from zoo.tool import Claim, Job, Look
from zoo.tools.asked import OVER, Tracers, asked, lives, ranks_of, state

BETWEEN_S = 2.0
ELSEWHERE = frozenset({"not-in-collective", "loader-stuck", "interpreter-frozen", "left-early"})
OTHER_CALL = frozenset({"collective-mismatch", "wait-cycle", "unmatched-p2p"})
GONE = frozenset({"rank-crashed", "rank-killed", "left-early"})
"""What the rule may mean by "not in a collective", "in another one" and "gone"."""
KINDS = ELSEWHERE | OTHER_CALL | GONE | {"rank-stopped"}
_LIBRARIES = (
    "torch/distributed/distributed_c10d.py",
    "torch/distributed/_functional_collectives",
    "torch/autograd/graph.py",
    "mpi4py",
)
_DDP = "torch/nn/parallel/distributed.py"
_NOT_THE_PROGRAM = ("site-packages", "dist-packages", "/lib/python", "<frozen", "<string>")


@dataclass(frozen=True)
class Stack:
    """A rank's main thread, innermost frame first: function, file and line."""

    frames: tuple[tuple[str, str, int], ...]

    @property
    def communicates(self) -> bool:
        """Rule 4."""
        files = [file for _, file, _ in self.frames]
        inner = bool(files) and _DDP in files[0]
        return inner or any(_any(file, _LIBRARIES) for file in files)

    @property
    def place(self) -> str:
        """The innermost line of the program."""
        own = (one for one in self.frames if not _any(one[1], _NOT_THE_PROGRAM))
        name, file, line = next(own, ("?", "?", 0))
        return f"{name} ({Path(file).name}:{line})"


def _any(file: str, parts: Sequence[str]) -> bool:
    return any(part in file for part in parts)


def stack(threads: Sequence[Mapping[str, Any]]) -> Stack:
    """The main thread of `py-spy dump --json`."""
    named = [one for one in threads if one.get("thread_name") == "MainThread"]
    frames = (named or list(threads))[0]["frames"] if threads else ()
    return Stack(tuple((one["name"], one["filename"], one["line"]) for one in frames))


@dataclass(frozen=True)
class Seen:
    """A rank in one round: `state` the letter of its process, empty if it is gone."""

    state: str
    stack: Stack | None


def conclusion(first: Mapping[int, Seen], second: Mapping[int, Seen], world: int) -> list[Claim]:
    """What a person reads in the two rounds, by the rule of this module."""
    stopped = tuple(rank for rank, one in sorted(second.items()) if one.state == "T")
    if stopped:
        return [_claim({"rank-stopped"}, stopped, "stopped", second)]
    gone = tuple(rank for rank in range(world) if not second.get(rank, Seen("", None)).state)
    if gone:
        return [_claim(GONE, gone, "gone", second)] if len(gone) < world else []
    stacks = {rank: one.stack for rank, one in second.items() if one.stack is not None}
    before = {rank: one.stack for rank, one in first.items()}
    if all(stacks[rank] != before.get(rank) for rank in stacks):
        return []
    elsewhere = tuple(rank for rank in sorted(stacks) if not stacks[rank].communicates)
    if elsewhere and len(elsewhere) < len(stacks):
        return [_claim(ELSEWHERE, elsewhere, "not in communication", second)]
    classes: dict[str, list[int]] = {}
    for rank in sorted(stacks):
        classes.setdefault(stacks[rank].place, []).append(rank)
    by_size = sorted(classes.values(), key=len)
    if len(by_size) < 2 or len(by_size[0]) == len(by_size[1]):
        return []
    return [_claim(OTHER_CALL, tuple(by_size[0]), "at another line", second)]


def _claim(
    kinds: frozenset[str] | set[str], ranks: tuple[int, ...], what: str, seen: Mapping[int, Seen]
) -> Claim:
    places = [one.stack.place for rank in ranks if (one := seen.get(rank)) and one.stack]
    text = f"ranks {','.join(map(str, ranks))}: {what}, in {'; '.join(places) or 'no frame'}"
    return Claim(frozenset(kinds), ranks, "critical", text)


class PySpy:
    """Asked once."""

    name, live = "py-spy", False
    about = "`py-spy dump` of all ranks, twice, 8 s after the fault, read by a fixed rule"

    def missing(self) -> str:
        """Whether py-spy is installed."""
        return "" if _command() else "py-spy is not installed (pip install py-spy)"

    def unable(self, case: Case) -> str:
        """The rule knows stopped, gone, elsewhere and other call. It knows no speeds and no
        data.
        """
        kinds = {kind for kind, _ in case.expected}
        return "" if not kinds or kinds & KINDS else "a stack does not show it"

    def start(self, stage: Stage, case: Case, seed: int | None, launcher: str) -> Started:
        """Starts the job unchanged."""
        return start(stage, case, seed, launcher)

    def looks(self, job: Job) -> Iterator[Look]:
        """One reading of two rounds of dumps."""
        return asked(job, lambda: _ask(job))


def _command() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def _ask(job: Job) -> Look:
    world = job.case.world
    pids = ranks_of(job.stage, job.program, world)
    if not pids:
        return Look(time.time_ns(), unable=OVER)
    with Tracers(list(pids.values())) as tracers:
        first = {rank: _seen(pid) for rank, pid in pids.items()}
        time.sleep(BETWEEN_S)
        second = {rank: _seen(pid) for rank, pid in pids.items()}
    if not any(one.state for one in second.values()):
        return Look(time.time_ns(), unable=OVER)
    claims = tuple(conclusion(first, second, world))
    return Look(time.time_ns(), claims, paused_s=tracers.longest_s)


def _seen(pid: int) -> Seen:
    letter = state(pid) if lives(pid) else ""
    # py-spy waits for a stopped process, which would stay stopped.
    if letter in ("", "T"):
        return Seen(letter, None)
    words = [_command() or "py-spy", "dump", "--json", "--pid", str(pid)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
        return Seen(letter, stack(json.loads(done.stdout)))
    except (subprocess.TimeoutExpired, ValueError):
        return Seen(letter if lives(pid) else "", None)
