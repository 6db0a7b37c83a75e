"""Hosts to attach to over ssh, `ddtop attach` to them, and `ddtop watch` as a process."""

import os
import select
import subprocess
import sys
import time
from contextlib import ExitStack, closing

import pytest

from ddtop import registry
from tests import hosts
from tests.cli.commands import ddtop
from tests.relay.stage import DEADLINE_S, Stage, sees_ranks
from tests.waiting import until


@pytest.fixture(params=[hosts.FAKE, hosts.REAL])
def there(request, tmp_path, home):
    found = hosts.host(request.param, tmp_path / "there", home.state, home.runtime)
    yield found
    found.close()


@pytest.fixture
def stand_in(tmp_path, home):
    """A host behind a fake ssh, for what does not depend on the transport."""
    return hosts.host(hosts.FAKE, tmp_path / "there", home.state, home.runtime)


@pytest.fixture
def attached(stand_in):
    """`ddtop attach` where it ends before a job is joined."""
    return lambda *words, **more: ddtop("attach", *words, **{**stand_in.environment, **more})


@pytest.fixture
def watched(stand_in):
    """`ddtop watch` where it ends before a job is joined."""
    return lambda *words, **more: ddtop("watch", *words, **{**stand_in.environment, **more})


@pytest.fixture
def here(home):
    """A relay on this host, and the port at which other hosts would find it."""
    stage = Stage(home)
    stage.rank()
    stage.heard(stage.viewer(), sees_ranks)
    until(registry.read_entries)
    yield stage
    stage.close()


class Watching:
    """The command, and the lines that it has printed."""

    def __init__(self, *words):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ddtop", "watch", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        self.buffer = b""

    def line(self):
        """The next line."""
        end = time.monotonic() + DEADLINE_S
        while b"\n" not in self.buffer:
            ready, _, _ = select.select(
                [self.process.stdout], [], [], max(end - time.monotonic(), 0)
            )
            data = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            assert data, (self.buffer, self.close())
            self.buffer += data
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line.decode()

    def event(self, contact=False):
        """The next line without its time; those of a silent relay only if the caller wants them."""
        while True:
            found = self.line().partition(" ")[2]
            if contact or not found.startswith(("lost contact: ", "joined again: ")):
                return found

    def ends(self):
        """(exit code, lines that were left, stderr)."""
        out, err = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, (self.buffer + out).decode().splitlines(), err.decode()

    def close(self):
        self.process.kill()
        return self.process.communicate()


@pytest.fixture
def watching():
    """Starts the command, and ends all of them."""
    with ExitStack() as ends:
        yield lambda *words: ends.enter_context(closing(Watching(*words)))
