"""A program of a framework under ddtop: started, asked about, judged and ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.frameworks.cases import FAULTS, PROGRAMS, Case

START_S, NAME_S = 300.0, 60.0
"""How long a program may take to begin to train (DeepSpeed compiles first), and ddtop to name its
fault."""
FAULT_AFTER_S = 12.0


class Run:
    """One program under ddtop, with folders of its own."""

    def __init__(self, case: Case, folder: Path, watched: bool = True, **variables: str) -> None:
        self.job = "fw"
        self.folder = folder
        runtime, state = folder / "runtime", folder / "state"
        for made in (runtime, state):
            made.mkdir(mode=0o700)
        self.environ = {
            name: value for name, value in os.environ.items() if not name.startswith("DDTOP")
        }
        self.environ |= {
            "DDTOP_RUNTIME": str(runtime),
            "DDTOP_STATE": str(state),
            "DDTOP_JOB": self.job,
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "FAULT_AFTER_S": str(FAULT_AFTER_S),
            "FAULT_FOLDER": str(folder),
            **case.variables,
            **variables,
        }
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                case.command(),
                env={**self.environ, **({"DDTOP": "1"} if watched else {})},
                cwd=PROGRAMS,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def ask(self, what: str) -> dict[str, Any]:
        """`ddtop status` or `ddtop diagnose` as JSON; empty if there is no job."""
        done = subprocess.run(
            [sys.executable, "-m", "ddtop", what, self.job, "--json"],
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        try:
            found: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            return {}
        return found

    def trains(self) -> bool:
        """All ranks have made some steps."""
        ranks = self.ask("status").get("ranks", [])
        return len(ranks) == 2 and all((rank["iteration"] or 0) > 5 for rank in ranks)

    def fault_age_s(self) -> float | None:
        """How long ago the fault has begun; None before it."""
        try:
            return time.time() - (self.folder / "began").stat().st_mtime
        except FileNotFoundError:
            return None

    def end(self) -> None:
        """End the processes of this program."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(10)

    def last_lines(self) -> str:
        """The end of what it printed."""
        return " / ".join(self.log.read_text(errors="replace").splitlines()[-3:])[-200:]


@contextmanager
def running(case: Case, watched: bool = True, **variables: str) -> Iterator[Run]:
    """The program in a folder of its own; it is ended afterwards."""
    with tempfile.TemporaryDirectory(prefix="ddfw-") as folder:
        run = Run(case, Path(folder), watched, **variables)
        try:
            yield run
        finally:
            run.end()


def healthy(case: Case, seconds: float) -> tuple[str, str]:
    """(what ddtop said in that time, who counted the steps and how far)."""
    with running(case) as run:
        began = time.monotonic()
        while not run.trains():
            if time.monotonic() - began > START_S or run.process.poll() is not None:
                return f"did not train: {run.last_lines()}", "-"
            time.sleep(1)
        until, said = time.monotonic() + seconds, set()
        while time.monotonic() < until:
            for one in run.ask("diagnose").get("findings", []):
                said.add(f"{one['severity']} {one['kind']}: {one['summary']}"[:160])
            time.sleep(1)
        told = run.ask("status")
        progress = told.get("progress") or {}
        counted = f"{progress.get('source')} {progress.get('step')}"
        wrong = progress.get("source") != case.source or told.get("probes_off")
        return "; ".join(sorted(said)) or "nothing", counted + (" WRONG" if wrong else "")


def faulty(case: Case, fault: str) -> tuple[str, str]:
    """(what names the fault and how long after it began; its sentence)."""
    with running(case, FAULT=fault) as run:
        began, wrong = time.monotonic(), ""
        while (age := run.fault_age_s() or 0.0) < NAME_S:
            if time.monotonic() - began > START_S:
                break
            for one in run.ask("diagnose").get("findings", []):
                if one["severity"] != "critical":
                    continue
                if not is_right(one, fault):
                    wrong = f"; before: {one['kind']} {one['ranks']} {one['summary']}"
                    continue
                age = run.fault_age_s() or age
                return f"{one['kind']}, {age:.0f} s", one["summary"] + wrong
            time.sleep(0.5)
        return "MISSED", wrong or run.last_lines()


def is_right(finding: dict[str, Any], fault: str) -> bool:
    """Whether this finding names rank 1 and its fault."""
    ranks = [0, 1] if finding["kind"] in ("collective-mismatch", "wait-cycle") else [1]
    return finding["kind"] in FAULTS[fault] and finding["ranks"] == ranks


def same_bits(case: Case) -> str:
    """`same` if 40 steps have the same result with and without ddtop."""
    found = []
    for watched in (True, False):
        with running(case, watched, STEPS="40", FAULT_AFTER_S="9999") as run:
            try:
                run.process.wait(START_S)
                lines = run.log.read_text(errors="replace").splitlines()
                found.append(
                    sorted({line.split("digest ")[1] for line in lines if "digest " in line})
                )
            except subprocess.TimeoutExpired:
                found.append([])
    return "same" if found[0] and found[0] == found[1] else f"DIFFERENT {found}"
