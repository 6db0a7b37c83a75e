"""A job of its own for one measurement: folders, processes, relay, and the end of all of them.

Every process that belongs to a stage carries the path of its state folder in its environment, so
that whatever is left can be found and ended by pid: ranks, their workers, and a relay that has not
yet written its job file.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from ddtop import registry
from ddtop.feeds.route import request
from ddtop.wire import frames
from ddtop.wire.records import AnyRecord, Command, Reply
from tests.crashes import CrashError, crashes
from tests.viewers import ViewerLink

HERE = Path(__file__).resolve().parent
WORKLOAD, PLAIN = HERE / "workload.py", HERE / "plain_rank.py"
APPEAR_S, END_S = 60.0, 5.0
LINGER_S = 20.0
_INHERITED = (
    "DDTOP",
    "TORCHELASTIC_",
    "OMP_",
    "MASTER_",
    "COVERAGE",
    "PYTHONPROFILE",
    "PYTHONWARNINGS",
)
_INHERITED_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "NO_COLOR", "COLUMNS", "LINES")


class StageError(Exception):
    """The job did not come up or ended early. The text has the end of its output."""


class Stage:
    """The surroundings of one job called `name`; a context manager, after which nothing of it is
    left. A rank that crashes ends it with a CrashError, unless `crash_expected`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        # Short, because a unix socket's path has at most 107 bytes.
        self.home = Path(tempfile.mkdtemp(prefix="ddb-"))
        self.processes: list[subprocess.Popen[bytes]] = []
        self._before: dict[str, str | None] = {}
        self.crash_expected = False

    def __enter__(self) -> Stage:
        for variable, value in self._folders().items():
            self._before[variable] = os.environ.get(variable)
            os.environ[variable] = value
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._end()
            if not self.crash_expected and (found := crashes(self.home / "state")):
                raise CrashError("\n".join(["a rank crashed, and nobody had told it to:", *found]))
        finally:
            for variable, value in self._before.items():
                if value is None:
                    os.environ.pop(variable, None)
                else:
                    os.environ[variable] = value
            shutil.rmtree(self.home, ignore_errors=True)

    def _folders(self) -> dict[str, str]:
        return {"DDTOP_STATE": str(self.home / "state"), "DDTOP_RUNTIME": str(self.home / "run")}

    # -- starting

    def environment(self, watched: bool, **more: str) -> dict[str, str]:
        """The environment of a process of this job. Only DDTOP=1 depends on `watched`."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(_INHERITED) and name not in _INHERITED_NAMES
        }
        kept |= self._folders() | {"OMP_NUM_THREADS": "1", "DDTOP_LINGER_S": str(LINGER_S)}
        kept |= {"DDTOP_QUIET": "1", "DDTOP_JOB": self.name}
        if watched:
            kept |= {"DDTOP": "1"}
        return kept | more

    def start(
        self, arguments: list[str], environment: dict[str, str], output: Path
    ) -> subprocess.Popen[bytes]:
        """Start a process whose stdout and stderr go to a file of the stage."""
        with output.open("wb") as file:
            process = subprocess.Popen(
                arguments,
                env=environment,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        self.processes.append(process)
        return process

    def ranks(
        self, script: Path, world_size: int, watched: bool, *arguments: str, **more: str
    ) -> list[subprocess.Popen[bytes]]:
        """Start all ranks of the job, as a person would from plain shells. `more`: further
        variables for each.
        """
        port = str(free_port())
        started = []
        for rank in range(world_size):
            environment = self.environment(
                watched,
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                WORLD_SIZE=str(world_size),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
                **more,
            )
            command = [sys.executable, str(script), *arguments]
            started.append(self.start(command, environment, self.output(rank)))
        return started

    def output(self, rank: int) -> Path:
        """The file of a rank's output."""
        return self.home / f"rank{rank}.out"

    # -- looking

    def said(self, rank: int) -> list[dict[str, Any]]:
        """The JSON lines that a rank has printed so far."""
        found = []
        # Two ranks of one launcher may print into one line.
        for line in (
            self.output(rank).read_text(errors="replace").replace("}{", "}\n{").splitlines()
        ):
            with suppress(json.JSONDecodeError):
                value = json.loads(line)
                if isinstance(value, dict):
                    found.append(value)
        return found

    def wait(self, seconds: float) -> None:
        """Wait until all processes have ended with exit code 0.

        Raises:
            StageError: one failed, or they took longer.
        """
        until = time.monotonic() + seconds
        for process in list(self.processes):
            try:
                code = process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise StageError(f"not over after {seconds:.0f} s\n{self.tails()}") from None
            if code:
                raise StageError(f"exit code {code}\n{self.tails()}")

    def wait_for(self, what: str, ready: Any, seconds: float = APPEAR_S) -> Any:
        """Poll `ready` until it returns something true.

        Raises:
            StageError: a process ended before, or it took too long.
        """
        until = time.monotonic() + seconds
        while not (found := ready()):
            if time.monotonic() > until or any(process.poll() for process in self.processes):
                raise StageError(f"no {what}\n{self.tails()}")
            time.sleep(0.05)
        return found

    def entry(self, reporting: int, seconds: float = APPEAR_S) -> registry.JobEntry:
        """The job's entry as soon as that many ranks have reported.

        Raises:
            StageError: they do not, as where ddtop's start-up hook is not installed in this Python.
        """

        def ready() -> registry.JobEntry | None:
            found = [one for one in registry.read_entries() if one.reporting >= reporting]
            return found[0] if found else None

        return self.wait_for(
            f"job with {reporting} ranks: is ddtop installed in {sys.executable}?", ready, seconds
        )

    def tails(self) -> str:
        """The end of the output of each started process."""
        texts = (
            path.read_text(errors="replace")[-400:] for path in sorted(self.home.glob("*.out"))
        )
        return "\n".join(text for text in texts if text)

    # -- ending

    def _end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                for number in (signal.SIGCONT, signal.SIGKILL):
                    with suppress(ProcessLookupError):
                        process.send_signal(number)
        for process in self.processes:
            process.wait()
        self.end_relays()
        for folder in ("/dev/shm", "/tmp"):
            for process in self.processes:
                for page in Path(folder, registry.pages_folder()).glob(f"{process.pid}-*.[ps]*"):
                    page.unlink(missing_ok=True)

    def end_relays(self) -> None:
        """End the relay and every other living process of this job: first with SIGTERM, then with
        SIGKILL.
        """
        for number in (signal.SIGTERM, signal.SIGKILL):
            left = self._left()
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            until = time.monotonic() + END_S
            while left and time.monotonic() < until:
                time.sleep(0.02)
                left = self._left()

    def _left(self) -> list[int]:
        mark = f"DDTOP_STATE={self._folders()['DDTOP_STATE']}".encode()
        mine = {process.pid for process in self.processes if process.poll() is None}
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            pid = int(path.parent.name)
            with suppress(OSError):
                if (
                    pid != os.getpid()
                    and pid not in mine
                    and mark in path.read_bytes().split(b"\0")
                ):
                    found.append(pid)
        return found


def history(
    entry: registry.JobEntry, seconds: float
) -> Iterator[tuple[frames.Envelope, AnyRecord]]:
    """What the relay of a job has kept of the last `seconds`, read as a viewer reads it."""
    link = ViewerLink(entry.address, entry.port, registry.secret())
    try:
        link.send(request(Command("join", history_s=seconds)))
        for data in link.receive(END_S):
            envelope = frames.open_envelope(data)
            record = frames.open_record(envelope)
            if isinstance(record, Reply):
                if record.name == "live":
                    return
            else:
                yield envelope, record
    finally:
        link.close()


def free_port() -> int:
    """A port on which no process listens at this moment."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
