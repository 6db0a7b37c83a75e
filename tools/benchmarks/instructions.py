"""How many instructions the agent's parts take, by valgrind's callgrind: the same number each time.

Each part runs n and then 2n times in one process; the difference of both counts is n runs, without
what else happens. Then the same with empty caches: how many lines it takes from memory, at some 0.1
us each. Numbers depend on the build of Python, so only those of one build are compared: with the
first table of `docs/results/cost.json`.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tools.benchmarks import counted
from tools.benchmarks.table import Row, missing

DATA = Path(__file__).parents[2] / "docs" / "results" / "cost.json"
MORE_PERCENT = 3.0
"""A number that has risen by more than this is a regression."""
TIMEOUT_S = 300.0
_PROGRAM = """
import itertools, time
time.monotonic = itertools.count(1e6, 1e-6).__next__
for name in ("monotonic_ns", "time_ns", "thread_time_ns"):
    setattr(time, name, itertools.count(10**15, 1000).__next__)
from tools.benchmarks import counted
counted.main()
"""
"""The clocks only count: nothing depends on how fast the machine is."""


def build() -> str:
    """The Python whose instructions are counted: another compiler makes others."""
    return f"Python {platform.python_version()}, {platform.python_compiler()}"


def count() -> dict[str, tuple[int, int]]:
    """Instructions of each part, and lines from memory with cold caches.

    Raises:
        RuntimeError: valgrind cannot run it.
    """
    with tempfile.TemporaryDirectory(prefix="ddb-") as folder:
        command = ["valgrind", "--tool=callgrind", "--dump-before=getloadavg", "--fair-sched=yes"]
        command += ["--cache-sim=yes", f"--LL={counted.CACHE_BYTES},16,64"]
        command += [f"--callgrind-out-file={folder}/out", sys.executable, "-c", _PROGRAM]
        # Nothing of the caller: the length of its variables moves the stack.
        variables = {"PYTHONHASHSEED": "0", "DDTOP_QUIET": "1", "PATH": "/usr/bin:/bin"}
        done = subprocess.run(
            command, env=variables, cwd=DATA.parents[2], capture_output=True, text=True,
            timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(done.stderr.strip()[-400:])
        # Before each run and after it: the second of two is the run.
        parts = range(2, len(os.listdir(folder)), 2)
        runs = [_totals(Path(folder, f"out.{number}")) for number in parts]
        names = json.loads(done.stdout.splitlines()[-1])
    found = {}
    for name, at in zip(names, range(0, len(runs), 12), strict=True):
        warm, cold = (_difference(runs[first : first + 6]) for first in (at, at + 6))
        found[name] = warm["Ir"], sum(cold[event] for event in ("ILmr", "DLmr", "DLmw"))
    return found


def _totals(path: Path) -> dict[str, int]:
    text = path.read_text()
    events, totals = (
        re.findall(f"^{word}: (.*)$", text, re.MULTILINE)[-1].split()
        for word in ("events", "totals")
    )
    return dict(zip(events, map(int, totals), strict=False))


def _difference(runs: list[dict[str, int]]) -> dict[str, int]:
    """Of one run: 2n less n, and less what is not ddtop's."""
    _, once, twice, _, once_bare, twice_bare = runs
    return {
        event: round(
            (twice[event] - once[event] - twice_bare[event] + once_bare[event]) / counted.ROUNDS
        )
        for event in once
    }


def known() -> dict[str, int]:
    """The numbers of the data file for this build of Python; empty where it has none."""
    first = json.loads(DATA.read_bytes())[0]
    return {
        name: int(measured.replace(",", ""))
        for name, measured, *_ in first["rows"]
        if build() in first["conditions"]
    }


def measure() -> Iterator[Row]:
    """Rows: each part, compared with the data file."""
    if shutil.which("valgrind") is None:
        yield missing("instructions", "valgrind is not installed")
        return
    before = known()
    for name, (now, lines) in count().items():
        most = before.get(name, 0) * (1 + MORE_PERCENT / 100)
        bar = f"<= {before[name]:,} + {MORE_PERCENT:g} %" if most else None
        detail = f"with cold caches {lines:,} lines from memory"
        if not most:
            detail += f"\nnothing is known of {build()}"
        yield Row(f"instructions, {name}", f"{now:,}", bar, now <= most if most else None, detail)


def times(rounds: int) -> Iterator[Row]:
    """Rows: CPU time of each part of this process, over torch."""
    for name, cold, warm in counted.times(rounds):
        yield Row(f"{name}, caches cold, warm", f"{cold:.1f}, {warm:.1f} us")
