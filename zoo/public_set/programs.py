"""Makes the programs from the table: of each row a faulty and a correct one, with neutral names."""

from __future__ import annotations

import random
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from zoo.public_set.table import ROWS, Row

SECONDS, PAUSE_S = 6.0, 0.05
MARK = "@"
_HEAD = """\
import sys
import time

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
left, right = (rank - 1) % size, (rank + 1) % size
big, into = np.ones(100_000), np.zeros(100_000)
one, got, three = np.ones(1), np.zeros(1), np.zeros(3)
"""
_LOOP = """\
for _ in range(8):
    comm.allreduce(1)
    time.sleep({pause})
if rank == 0:
    print("begun", flush=True)
for _ in range({turns}):
    turn()
    time.sleep({pause})
"""


@dataclass(frozen=True)
class Program:
    """A program and what is expected of it. `lines`: those that a finding of it may name."""

    name: str
    row: Row
    faulty: bool
    text: str
    lines: tuple[int, ...]


def programs(rows: Sequence[Row] = ROWS) -> list[Program]:
    """All programs, sorted by name. A name does not tell whether the program is faulty."""
    numbers = random.Random(63).sample(range(100, 1000), 2 * len(rows))
    made = [
        _program(f"job{number}", rows[at // 2], at % 2 == 0) for at, number in enumerate(numbers)
    ]
    return sorted(made, key=lambda one: one.name)


def _program(name: str, row: Row, faulty: bool) -> Program:
    parts = textwrap.dedent(row.body).strip("\n").split("---\n")
    before = _chosen(parts[0], faulty) if len(parts) > 1 else ""
    turn = textwrap.indent(_chosen(parts[-1], faulty) or "pass\n", "    ")
    slept_s = 0.2 if "sleep" in turn else 0.0
    turns = round(SECONDS / (PAUSE_S + slept_s))
    loop = _LOOP.format(pause=PAUSE_S, turns=turns)
    marked = f"{_HEAD}{before}\n\ndef turn():\n{turn}\n\n{loop}".splitlines()
    lines = tuple(at for at, line in enumerate(marked, 1) if line.endswith(f" {MARK}"))
    text = "\n".join(line.removesuffix(f" {MARK}") for line in marked) + "\n"
    return Program(name, row, faulty, text, lines)


def _chosen(body: str, faulty: bool) -> str:
    """The lines of one of the two programs."""
    other = "+" if faulty else "-"
    kept = (line for line in body.splitlines() if not line.startswith(other))
    return "".join(re.sub(r"^[+-]", "", line).rstrip() + "\n" for line in kept)
