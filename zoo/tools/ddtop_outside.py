"""ddtop from outside: the ranks run without DDTOP, and a person types `ddtop diagnose --pid`."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from tools.benchmarks.stage import Stage
from zoo.case import MPIRUN, Case
from zoo.start import Started, start
from zoo.tool import Claim, Job, JobError, Look
from zoo.tools.asked import OVER, Tracers, asked, lives, processes

EXPECTED = frozenset({
    "not-in-collective", "interpreter-frozen", "loader-stuck", "rank-stopped", "rank-killed",
    "left-early", "rank-missing", "late-to-init", "straggler", "memory-pressure", "disk-full",
})  # fmt: skip
"""Kinds that a look from outside should name. Exceptions are not seen there."""
OF_MPI = frozenset({"wait-cycle", "unmatched-p2p"})
"""Of calls of MPI these, too: who sends to whom may stand in the program's line."""
NEEDS_NUMBERS = frozenset({"collective-mismatch"})
"""Kinds that only sequence numbers can tell: from outside a warning that the job makes no progress
is right, and so is silence."""
NEEDS_STEPS = frozenset({"sync-bound", "cpu-oversubscribed", "sampler-not-distributed",
                         "epoch-not-set"})  # fmt: skip
ALSO = {"not-in-collective": ("interpreter-frozen",), "loader-stuck": ("not-in-collective",)}
"""What is right from outside as well: C code that holds the GIL is known inside only."""


class DdtopOutside:
    """Asked once; no part of ddtop is in the ranks."""

    name, live = "ddtop-outside", False
    about = "ranks without DDTOP, `ddtop diagnose --pid` 8 s after the fault"

    def missing(self) -> str:
        """ddtop is always installed."""
        return ""

    def unable(self, case: Case) -> str:
        """A look from outside knows no steps, and needs a job that still runs."""
        if case.act is not None:
            return OVER
        kinds = {kind for kind, _ in case.expected}
        return "steps are not seen from outside" if kinds and kinds <= NEEDS_STEPS else ""

    def start(self, stage: Stage, case: Case, seed: int | None, launcher: str) -> Started:
        """Starts the job unchanged."""
        return start(stage, case, seed, launcher)

    def looks(self, job: Job) -> Iterator[Look]:
        """One `ddtop diagnose`."""
        return asked(job, lambda: _ask(job))


def is_expected(case: Case) -> bool:
    """Whether a look from outside is expected to name it."""
    kinds = {kind for kind, _ in case.expected}
    known = EXPECTED | OF_MPI if case.launcher == MPIRUN else EXPECTED
    return bool(kinds & known) and not kinds & NEEDS_NUMBERS


def _ask(job: Job) -> Look:
    # No poll of the processes: it would take away the zombies that a shell leaves.
    _has_bytecode()
    pids = [one.pid for one in job.stage.processes if lives(one.pid)]
    if not pids:
        return Look(time.time_ns(), unable=OVER)
    words = [sys.executable, "-m", "ddtop", "diagnose", "--json", "--pid", ",".join(map(str, pids))]
    began = time.monotonic()
    with Tracers(processes(job.stage)) as tracers:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    took_s = time.monotonic() - began
    if done.returncode == 3 and "there is no process" in done.stderr:
        return Look(time.time_ns(), unable=OVER)
    try:
        findings = json.loads(done.stdout)["findings"]
    except (ValueError, KeyError):
        raise JobError(f"exit code {done.returncode}: {done.stderr[-400:]}") from None
    claims = tuple(claim(one) for one in findings)
    return Look(time.time_ns(), claims, paused_s=tracers.longest_s, took_s=took_s)


@functools.cache
def _has_bytecode() -> None:
    """Lets Python keep the bytecode of the command, once, as on the machine of a user who has typed
    a command before.
    """
    code = "import ddtop.cli.commands.diagnose, ddtop.cli.outside"
    subprocess.run([sys.executable, "-c", code], check=True)


def claim(finding: dict[str, Any]) -> Claim:
    """A finding of `--json`."""
    kinds = frozenset({finding["kind"], *ALSO.get(finding["kind"], ())})
    text = "\n".join((finding["summary"], *finding.get("evidence", ())))
    advice = finding.get("advice") or ""
    return Claim(kinds, tuple(finding["ranks"]), finding["severity"], text, advice)
