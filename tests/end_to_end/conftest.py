"""Real jobs, each in a world of its own. Whatever a test does, nothing of the job is left
behind.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ddtop import registry
from tests.conftest import Home
from tests.crashes import crashes

FOLDER = Path(__file__).parent
PROGRAMS = FOLDER / "programs"
END_S = 10.0
START_S = 90.0
"""Several imports of torch on a loaded machine take their time."""
PAGES = (Path("/dev/shm"), Path("/tmp"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder start real jobs."""
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.job)


class World:
    """Starts programs, watches them from outside, ends them. Every process in it has the world's
    folder in its environment. The world finds its processes by that, also the relay, which has no
    parent here.
    """

    def __init__(self, home: Home, folder: Path) -> None:
        self.gloo_aborts = False
        self.home, self.folder = home, folder
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(
                ("DDTOP", "TORCHELASTIC", "OMP", "SLURM", "HYPOTHESIS", "PYTEST")
            )
        } | {
            "DDTOP_STATE": str(home.state),
            "DDTOP_RUNTIME": str(home.runtime),
            "DDTOP_LINGER_S": "30",
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(folder),
        }
        self._mark = f"DDTOP_STATE={home.state}".encode()
        self._started: list[subprocess.Popen[bytes]] = []
        self._seen: set[int] = set()

    # -- programs

    def start(
        self, name: str, *words: str, ddtop: bool = True, **variables: object
    ) -> subprocess.Popen[bytes]:
        """Starts one program of the folder `programs`. Its output goes to files of its name."""
        return self.start_command(
            [sys.executable, str(PROGRAMS / f"{name}.py"), *words], ddtop, **variables
        )

    def torchrun(
        self, name: str, *words: str, ranks: int = 2, ddtop: bool = True, **variables: object
    ) -> subprocess.Popen[bytes]:
        """The same under torchrun."""
        launcher = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(ranks),
        ]
        return self.start_command(
            [*launcher, str(PROGRAMS / f"{name}.py"), *words], ddtop, **variables
        )

    def start_command(
        self, command: list[str], ddtop: bool = True, **variables: object
    ) -> subprocess.Popen[bytes]:
        number = len(self._started)
        given = {name: str(value) for name, value in variables.items()} | (
            {"DDTOP": "1"} if ddtop else {}
        )
        with (
            (self.folder / f"out{number}").open("wb") as out,
            (self.folder / f"err{number}").open("wb") as err,
        ):
            process = subprocess.Popen(
                command,
                env=self.environment | given,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def output(self, process: subprocess.Popen[bytes]) -> tuple[str, str]:
        """Its output so far: stdout, stderr."""
        number = self._started.index(process)
        return (self.folder / f"out{number}").read_text(), (
            self.folder / f"err{number}"
        ).read_text()

    def done(self, process: subprocess.Popen[bytes], within_s: float = 30.0) -> int:
        """Its exit code."""
        try:
            return process.wait(within_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {within_s} s; it wrote: {self.output(process)}")

    # -- what ddtop shows

    def ddtop(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A `ddtop` command."""
        return subprocess.run(
            [sys.executable, "-m", "ddtop", *words],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )

    def job(self) -> str:
        """The name of the only job."""
        (entry,) = self.until(registry.read_entries, START_S, "a job file")
        return str(entry.job)

    def diagnose(self, seconds: float = 1.1) -> dict[str, Any]:
        """`ddtop diagnose --json` of the only job."""
        done = self.ddtop("diagnose", self.job(), "--json", "--for", str(seconds))
        if done.returncode not in (0, 1):
            return {
                "findings": [],
                "health": None,
                "reporting": 0,
                "why": done.stderr,
                "ended": None,
                "iteration": None,
            }
        found: dict[str, Any] = json.loads(done.stdout)
        assert (found["health"] == "critical") == (done.returncode == 1)
        return found

    def status(self) -> list[dict[str, Any]]:
        """The ranks of `ddtop status --json`."""
        done = self.ddtop("status", self.job(), "--json")
        return json.loads(done.stdout)["ranks"] if done.returncode == 0 else []

    def finding(self, kind: str, within_s: float = 30.0) -> dict[str, Any]:
        """The finding of that kind, as soon as it is shown."""

        def found() -> dict[str, Any] | None:
            return next((one for one in self.diagnose()["findings"] if one["kind"] == kind), None)

        return self.until(found, within_s, f"a finding {kind}")

    def moving(self, iterations: int = 5, ranks: int = 2) -> dict[str, Any]:
        """The diagnosis, as soon as all ranks report and the job moves."""

        def found() -> dict[str, Any] | None:
            now = self.diagnose()
            return (
                now if (now["iteration"] or 0) >= iterations and now["reporting"] == ranks else None
            )

        return self.until(found, START_S, "a moving job")

    def until(self, question: Callable[[], Any], within_s: float, what: str) -> Any:
        """The first true answer. Asks again and again until the deadline."""
        end = time.monotonic() + within_s
        while not (answer := question()):
            if time.monotonic() > end:
                pytest.fail(f"no {what} within {within_s} s\n{self.story()}")
            time.sleep(0.05)
        return answer

    def story(self) -> str:
        """Text for a person after a failed test."""
        texts = [
            f"--- {path.name}\n{path.read_text(errors='replace')[-2000:]}"
            for path in self.folder.glob("[oe][ur][tr]*")
        ]
        texts += [
            f"--- {path.name}\n{path.read_text()}" for path in self.home.runtime.glob("*.log")
        ]
        return "\n".join([*texts, self.ddtop("diagnose", "--for", "1").stdout])

    # -- processes

    def processes(self) -> set[int]:
        """All living processes of this world."""
        found = set()
        for path in Path("/proc").glob("[0-9]*"):
            try:
                inside = self._mark in (path / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if (
                inside
                and int(path.name) != os.getpid()
                and registry.start_ticks(int(path.name)) is not None
            ):
                found.add(int(path.name))
        self._seen |= found
        return found

    def relay(self) -> int:
        """The relay's pid, from the job file."""
        self.job()
        return registry.read_entries()[0].relay_pid

    def pages(self) -> list[Path]:
        """State pages and dump files of this world's processes."""
        pids = {str(pid) for pid in self._seen | {process.pid for process in self._started}}
        found = [
            path for home in PAGES for path in (home / registry.pages_folder()).glob("*-*.[ps]*")
        ]
        return [path for path in found if path.stem.partition("-")[0] in pids]

    def close(self) -> None:
        """End every process of this world, by its pid, stopped ones too; remove what a killed
        relay could not.
        """
        end = time.monotonic() + END_S
        while left := self.processes():
            for pid in left:
                for number in (signal.SIGCONT, signal.SIGKILL):
                    try:
                        os.kill(pid, number)
                    except ProcessLookupError:
                        break
            for process in self._started:
                process.poll()
            if time.monotonic() > end:
                pytest.fail(f"processes {left} do not end")
            time.sleep(0.02)
        for process in self._started:
            process.wait()
        for path in self.pages():
            path.unlink(missing_ok=True)
        if not self.gloo_aborts and (found := crashes(self.home.state)):
            pytest.fail("\n".join(["a rank crashed, and no test had told it to:", *found]))


@pytest.fixture
def world(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    # Sockets are made in it, whose paths have a limit: the name of the test would be too long.
    with closing(World(home, tmp_path_factory.mktemp("world"))) as found:
        yield found
