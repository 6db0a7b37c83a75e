"""A relay that cannot start, or is killed: the rank says why, and nothing is left behind."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddtop import registry
from tests.waiting import until

pytestmark = [pytest.mark.usefixtures("hook_is_installed"), pytest.mark.job]
DEADLINE_S = 30.0


@pytest.fixture
def rank(home, tmp_path):
    """Starts a watched program that waits for a line; ends it."""
    started = []
    (tmp_path / "train.py").write_text("import sys; sys.stdin.readline()\n")

    def start(**variables):
        started.append(
            subprocess.Popen(
                [sys.executable, str(tmp_path / "train.py")],
                env={
                    **os.environ,
                    "DDTOP": "1",
                    "DDTOP_LINGER_S": "0",
                    "RANK": "0",
                    "WORLD_SIZE": "1",
                    **variables,
                },
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.communicate()


def pages(pid):
    return [
        path
        for folder in ("/dev/shm", "/tmp")
        for path in (Path(folder) / registry.pages_folder()).glob(f"{pid}-*")
    ]


def locks_with_roster(home):
    """The lock of the relay, once that has written down whom it watches."""
    until(lambda: list(home.runtime.glob("*.roster")))
    return list(home.runtime.glob("*.lock"))


def is_refused(path):
    """Whether nobody listens there: the kernel has closed the sockets of the killed relay."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asked:
        try:
            asked.connect(str(path))
        except ConnectionRefusedError:
            return True
    return False


def line_of(process):
    assert process.stderr is not None
    return process.stderr.readline()


def test_a_relay_killed_by_minus_9_leaves_nothing_after_its_job_has_ended(home, rank):
    """The rank that ends starts another one, which tells the end and removes what both had."""
    process = rank()
    assert line_of(process).startswith("ddtop: watching")
    (entry,) = until(registry.read_entries)
    assert pages(process.pid)
    until(lambda: all(time.time() - one.stat().st_mtime > 1.1 for one in locks_with_roster(home)))
    os.kill(entry.relay_pid, signal.SIGKILL)
    until(lambda: all(is_refused(path) for path in home.runtime.glob("*.link")))
    process.communicate("\n", timeout=DEADLINE_S)
    until(lambda: not pages(process.pid) and not list(home.runtime.glob("*.[lrs]*")))

    assert process.returncode == 0
    assert registry.read_entries()[0].ended_reason == "finished"


def test_watching_is_reported_only_when_a_relay_answers(home, rank):
    """It was said at once, also where no relay could start: a pipe in the place of its lock, a full
    disk, a sandbox without unix sockets.
    """
    os.mkfifo(registry.socket_path("7", "r1").with_suffix(".lock"), 0o600)

    assert line_of(rank(DDTOP_TREE="train|r1", TORCHELASTIC_RUN_ID="7")) == (
        f"ddtop: not watched, because no relay answers: {home.runtime}: is not a file\n"
    )
