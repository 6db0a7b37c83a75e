"""A program of a framework under ddtop: it is started, watched, judged and ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from zoo.frameworks.cases import FAULTS, PROGRAMS, Case

START_S, NAME_S = 600.0, 60.0
"""How long a program may take to begin to train (on a busy machine, minutes), and ddtop to name its
fault."""
FAULT_AFTER_S = 12.0
END_S = 15.0
"""How long what it has started may take to end by itself. A relay waits some seconds for ranks."""


class Run:
    """One program under ddtop, with folders of its own."""

    def __init__(self, case: Case, folder: Path, watched: bool = True, **variables: str) -> None:
        self.job = "fw"
        self.folder = folder
        runtime, state, temporary = folder / "runtime", folder / "state", folder / "tmp"
        for made in (runtime, state, temporary):
            made.mkdir(mode=0o700)
        self.environ = {
            name: value for name, value in os.environ.items() if not name.startswith("DDTOP")
        }
        self.environ |= {
            "DDTOP_RUNTIME": str(runtime),
            "DDTOP_STATE": str(state),
            "DDTOP_JOB": self.job,
            # Killed programs leave their temporary files behind.
            "TMPDIR": str(temporary),
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

    @contextmanager
    def watched(self) -> Iterator[Callable[[], list[dict[str, Any]]]]:
        """`ddtop watch` beside it: a function that gives the events so far.

        One process for the whole run: on a busy machine each command takes seconds to start.
        """
        events = self.folder / "events"
        with events.open("wb") as out:
            watch = subprocess.Popen(
                [*(sys.executable, "-m", "ddtop", "watch", self.job), "--wait", "--json"],
                env=self.environ,
                stdout=out,
                stderr=subprocess.DEVNULL,
            )

        def read() -> list[dict[str, Any]]:
            # Exit code 2 means that it was called wrongly. When the job ends, `watch` ends too.
            assert watch.poll() not in (2, 3), "ddtop watch does not run"
            return [json.loads(one) for one in events.read_bytes().split(b"\n")[:-1]]

        try:
            yield read
        finally:
            watch.terminate()
            watch.wait()

    def trains(self) -> bool:
        """Wait until all ranks have made some steps."""
        return all((self.folder / f"trains-{rank}").exists() for rank in (0, 1))

    def fault_unix_s(self) -> float | None:
        """When the fault has begun; None before it."""
        try:
            return (self.folder / "began").stat().st_mtime
        except FileNotFoundError:
            return None

    def end(self) -> None:
        """End the processes of this program: its own group, and those that have left it.

        A relay and the daemons of Ray have sessions of their own, and write into the folder.
        """
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
        until = time.monotonic() + END_S
        while left := self.left():
            if time.monotonic() > until:
                for pid in left:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.2)

    def left(self) -> list[int]:
        """Processes that have the environment of this program."""
        mark, found = os.fsencode(f"DDTOP_RUNTIME={self.folder}/"), []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
        return found

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


def healthy(case: Case, seconds: float, fault: str) -> tuple[tuple[str, str], tuple[str, str]]:
    """A healthy run for that time, then the fault in the same run: each start takes long.

    Returns (what ddtop said in that time, who counted the steps and how far), and `faulty`.
    """
    with running(case, FAULT=fault, FAULT_AFTER_S="go") as run, run.watched() as events:
        began = time.monotonic()
        while not run.trains():
            if time.monotonic() - began > START_S or run.process.poll() is not None:
                return (f"did not train: {run.last_lines()}", "-"), ("-", "did not train")
            time.sleep(2)
        before = len(events())
        time.sleep(seconds)
        told = run.ask("status")
        progress = told.get("progress") or {}
        counted = f"{progress.get('source')} {progress.get('step')}"
        wrong = progress.get("source") != case.source or told.get("probes_off")
        said = [
            one["finding"] if one["event"] == "appeared" else one
            for one in events()[before:]
            if one["event"] in ("appeared", "lost", "ended")
        ]
        standing = run.ask("diagnose").get("findings", [])
        lines = sorted({_line(one) for one in [*said, *standing]})
        (run.folder / "go").touch()
        found = _named(run, events, fault)
        return ("; ".join(lines) or "nothing", counted + (" WRONG" if wrong else "")), found


def _line(said: dict[str, Any]) -> str:
    """A finding, or an event without one, as one line."""
    if "kind" not in said:
        return f"{said['event']}: {said['text']}"
    return f"{said['severity']} {said['kind']}: {said['summary']}"[:400]


def faulty(case: Case, fault: str) -> tuple[str, str]:
    """(the finding that names the fault and how long after the fault it came; its sentence)."""
    with running(case, FAULT=fault) as run, run.watched() as events:
        return _named(run, events, fault)


def _named(run: Run, events: Callable[[], list[dict[str, Any]]], fault: str) -> tuple[str, str]:
    began, wrong = time.monotonic(), ""
    while (time.time() - (run.fault_unix_s() or time.time())) < NAME_S:
        if time.monotonic() - began > START_S:
            break
        for event in events():
            one = event["finding"]
            if event["event"] != "appeared" or one["severity"] != "critical":
                continue
            if not is_right(one, fault):
                wrong = f"; before: {one['kind']} {one['ranks']} {one['summary']}"
                continue
            age = event["time_unix_ns"] / 1e9 - (run.fault_unix_s() or 0.0)
            return f"{one['kind']}, {age:.0f} s", one["summary"] + wrong
        time.sleep(0.5)
    said = "; ".join(one["text"] for one in events()[-3:]) or "nothing"
    last = "; ".join(_line(one) for one in run.ask("diagnose").get("findings", [])) or "nothing"
    return "MISSED", f"watch: {said}; diagnose: {last}{wrong}; {run.last_lines()}"


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
