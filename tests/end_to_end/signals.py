"""Signals, start methods and Pythons: exit code, stdout and stderr of a program with ddtop and
without.

By hand, on each Python that has ddtop installed: `python -m tests.end_to_end.signals [PYTHON ...]`
prints a table. The rank needs no torch.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROGRAM = Path(__file__).parent / "programs" / "signalled.py"
METHODS = ("plain", "fork", "spawn", "forkserver", "subprocess")
BEHAVIOURS = ("default", "handled", "blocked")
SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGKILL")
READY_S, AGENT_S = 60.0, 30.0
_PID = re.compile(r"(ready|ForkProcess-|SpawnProcess-|pid=) ?\d+")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the user who started the program sees of it, without pids."""

    code: int
    out: str
    err: str


class NoAgentError(Exception):
    """The program was started with ddtop, and no agent started, so the comparison would prove
    nothing.
    """


def cases() -> Iterator[tuple[str, str, str]]:
    """(method, behaviour, signal); SIGKILL can neither be handled nor blocked."""
    for method in METHODS:
        for behaviour in BEHAVIOURS:
            for name in SIGNALS if behaviour == "default" else SIGNALS[:-1]:
                yield method, behaviour, name


def outcome(
    python: str, folder: Path, watched: bool, method: str, behaviour: str, name: str
) -> Outcome:
    """Run the program once, with its rank's agent or without, and send the signal to the process
    that does the work.

    Raises:
        NoAgentError: it was to be watched, and is not.
    """
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("DDTOP", "PYTEST", "COVERAGE"))
    }
    own = {
        "DDTOP_STATE": str(folder / "state"),
        "DDTOP_RUNTIME": str(folder / "run"),
        "DDTOP_LINGER_S": "0.2",
    }
    rank = {"RANK": "0", "WORLD_SIZE": "1", "DDTOP_QUIET": "1", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [python, str(PROGRAM), method, behaviour],
        env={**kept, **own, **rank} | ({"DDTOP": "1"} if watched else {}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if watched:
            _wait_for_agent(process.pid, folder)
        process.stdin.write("\n")
        process.stdin.flush()
        first = process.stdout.readline()
        if first.startswith("ready "):
            _wait_for_sleep(int(first.split()[1]))
            os.kill(int(first.split()[1]), signal.Signals[name])
        out, err = process.communicate(timeout=READY_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    return Outcome(process.returncode, _PID.sub(r"\1 N", first + out), _PID.sub(r"\1 N", err))


def _wait_for_agent(pid: int, folder: Path) -> None:
    """Wait until the agent's thread runs and its relay knows the process."""
    end = time.monotonic() + AGENT_S
    while time.monotonic() < end:
        if len(os.listdir(f"/proc/{pid}/task")) > 1 and list((folder / "state").glob("*.json")):
            return
        time.sleep(0.02)
    raise NoAgentError(f"no agent in process {pid} within {AGENT_S:g} s")


def _wait_for_sleep(pid: int) -> None:
    """Wait until the process has gone to sleep some times, because a traceback has the line that
    the signal interrupted.
    """

    def slept() -> int:
        lines = (
            Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
        )
        return next(
            int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches")
        )

    at_first, end = slept(), time.monotonic() + READY_S
    while slept() < at_first + 3 and time.monotonic() < end:
        time.sleep(0.01)


def main() -> int:
    """Print the table. Returns 1 if one case differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pythons", nargs="*", default=[sys.executable])
    parser.add_argument("--behaviour", choices=BEHAVIOURS)
    differing = 0
    options = parser.parse_args()
    for python in options.pythons:
        version = subprocess.run(
            [python, "-V"], capture_output=True, text=True, check=True
        ).stdout.strip()
        same = tried = 0
        for method, behaviour, name in cases():
            if options.behaviour not in (None, behaviour):
                continue
            with tempfile.TemporaryDirectory(prefix="dds-", ignore_cleanup_errors=True) as home:
                plain, watched = (
                    outcome(python, Path(home), on, method, behaviour, name) for on in (False, True)
                )
            tried += 1
            same += plain == watched
            if plain != watched:
                print(
                    f"  {version} {method} {behaviour} {name}:\n    without {plain}\n    with   "
                    f" {watched}",
                    flush=True,
                )
        print(f"{version}: {same} of {tried} identical", flush=True)
        differing += tried - same
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
