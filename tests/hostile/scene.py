"""A relay as it runs in a real job, in a process of its own, with one honest rank and one honest
viewer beside the attackers.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable

import psutil
import zmq

from ddtop import registry
from ddtop.link.packets import greeting, packets_of
from ddtop.link.rank_side import RankLink
from ddtop.link.viewer_side import PING_S
from ddtop.wire import frames
from ddtop.wire.records import AnyRecord, Command, Hello, HostState, RankState, Reply
from tests.speaking import process_with_link, raw, say
from tests.viewers import ViewerLink

DEADLINE_S = 30.0
SLICE_S = 0.5
RELAY = "from ddtop.relay import __main__, server; server.HOST_EVERY_S /= 5; __main__.main()"
"""It reports five times a second, so that no attack waits for its counts."""
GREETING = b"\xff" + b"\0" * 8 + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + b"\0" + b"\0" * 31
"""What a ZMTP 3 client with CURVE says first."""


class Neighbour:
    """A connection of this process to the unix socket. It blocks while the relay does not read."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self._number = 0

    def packet(self, data: bytes) -> None:
        """Send these bytes as one packet."""
        self.socket.sendall(data)

    def send(self, frame: bytes) -> None:
        """Send a frame, in pieces if needed."""
        self._number += 1
        for packet in packets_of(frame, self._number):
            self.packet(packet)

    def is_closed(self) -> bool:
        """Whether the relay has closed it within the time limit of a test."""
        self.socket.settimeout(DEADLINE_S)
        try:
            while self.socket.recv(1 << 16):
                pass
        except ConnectionError:
            pass
        return True


class Scene:
    """The relay (`process`), its rank and its viewer."""

    def __init__(self) -> None:
        self._relay = subprocess.Popen(
            [sys.executable, "-c", RELAY, "--job", "train", "--run", "r1"],
            env={**os.environ, "DDTOP_LINGER_S": "1"},
        )
        self.process = psutil.Process(self._relay.pid)
        self._links: list[RankLink | ViewerLink] = []
        self._sockets: list[Neighbour] = []
        self._path = registry.socket_path("train", "r1")
        self._child, self.rank = process_with_link(self._path, "sys.stdin.read()")
        self.pid = self._child.pid
        self._links.append(self.rank)
        self._context = zmq.Context()
        self._dealers: list[zmq.Socket[bytes]] = []
        self._numbers = itertools.count(1)
        try:
            self.say(self.hello(self.pid))
            self.port = self._entry().port
            self.viewer = self.joined()
        except BaseException:
            self._end()
            raise

    def hello(self, pid: int, rank: int = 0) -> Hello:
        """What the agent of an honest process would send."""
        return Hello(
            "train",
            "r1",
            0,
            rank,
            rank,
            2,
            "h",
            pid,
            registry.start_ticks(pid) or 0,
            script="train",
        )

    def _entry(self) -> registry.JobEntry:
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end and self._relay.poll() is None:
            for entry in registry.read_entries():
                return entry
            time.sleep(0.02)
        raise AssertionError("the relay wrote no job file")

    # -- the honest

    def another_rank(self) -> RankLink:
        """A further connection to the unix socket, of this process."""
        self._links.append(RankLink(self._path))
        return self._links[-1]

    def another_viewer(self, secret: bytes | None = None, controller: bool = False) -> ViewerLink:
        """A viewer with this secret, or with the user's own if None."""
        self._links.append(
            ViewerLink("127.0.0.1", self.port, secret or registry.secret(), controller)
        )
        return self._links[-1]

    def joined(self, controller: bool = False) -> ViewerLink:
        """A viewer that has been accepted and has got its history."""
        viewer = self.another_viewer(controller=controller)
        self.order(viewer, Command("join"))
        self.hears(lambda record: isinstance(record, Reply) and record.name == "live", viewer)
        return viewer

    def say(self, record: AnyRecord, rank: int = 0) -> None:
        """The honest rank sends it."""
        say(self.rank, self.seal(record, self.pid, rank))

    def seal(
        self, record: AnyRecord, pid: int | None, rank: int | None = 0, sender: str = "h"
    ) -> bytes:
        """A frame as an agent makes it."""
        now = time.monotonic_ns()
        return frames.seal(
            record, sender=sender, unix_ns=time.time_ns(), mono_ns=now, rank=rank, pid=pid
        )

    def order(self, viewer: ViewerLink, command: AnyRecord) -> None:
        """A viewer sends a request."""
        viewer.send(frames.seal(command, sender="viewer", unix_ns=0, mono_ns=0))

    def hears(
        self, wanted: Callable[[AnyRecord], bool], viewer: ViewerLink | None = None
    ) -> AnyRecord:
        """The first record of that kind that a viewer gets. Like any viewer, it sends pings
        meanwhile, and joins again if the relay has dropped it.
        """
        link, end = viewer or self.viewer, time.monotonic() + DEADLINE_S
        pinged = time.monotonic()
        while time.monotonic() < end:
            for data in link.receive(SLICE_S):
                record = frames.open_record(frames.open_envelope(data))
                if wanted(record):
                    return record
                if isinstance(record, Reply) and record.name == "rejoin":
                    self.order(link, Command("join"))
            if time.monotonic() - pinged > PING_S:
                pinged = time.monotonic()
                self.order(link, Command("ping"))
        raise AssertionError("never heard it")

    def reply(self, viewer: ViewerLink, command: Command) -> Reply:
        """The result of an order."""
        self.order(viewer, command)
        answer = self.hears(
            lambda record: isinstance(record, Reply) and record.name == command.name, viewer
        )
        assert isinstance(answer, Reply)
        return answer

    def host(self, wanted: Callable[[HostState], bool]) -> HostState:
        """The first report of the relay for which the condition holds."""
        self.order(self.viewer, Command("ping"))
        found = self.hears(lambda record: isinstance(record, HostState) and wanted(record))
        assert isinstance(found, HostState)
        return found

    def serves(self) -> None:
        """A report of the rank still reaches the viewer, and a new viewer is accepted."""
        number = next(self._numbers)
        self.say(RankState("running", iteration=number))
        self.order(self.viewer, Command("ping"))
        self.hears(lambda record: isinstance(record, RankState) and record.iteration == number)
        viewer = self.joined()
        viewer.close()
        self._links.remove(viewer)

    # -- the others

    def stranger(self, data: bytes = b"") -> socket.socket:
        """A connection to the TCP port that has sent these bytes."""
        found = socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE_S)
        with contextlib.suppress(OSError):
            found.sendall(data)
        return found

    def dealer(self, history_s: float = 0.0, **options: object) -> zmq.Socket[bytes]:
        """A ZeroMQ socket of a stranger, connected to the port, that has sent `join`."""
        found = self._context.socket(zmq.DEALER)
        self._dealers.append(found)
        found.setsockopt(zmq.LINGER, 0)
        for name, value in options.items():
            setattr(found, name, value)
        found.connect(f"tcp://127.0.0.1:{self.port}")
        join = Command("join", history_s=history_s)
        found.send(frames.seal(join, sender="viewer", unix_ns=0, mono_ns=0), zmq.NOBLOCK)
        return found

    def on_the_unix_socket(self, greets: bool = True) -> Neighbour:
        """This process as another process of the user, connected to the socket of the ranks."""
        self._sockets.append(Neighbour(raw(self._path)))
        if greets:
            self._sockets[-1].packet(greeting("0"))
        return self._sockets[-1]

    @property
    def refused(self) -> int:
        """How many connections the relay has refused by its next report."""
        return self.host(lambda _: True).refused

    def over(self) -> None:
        """The attack is over: its sockets are closed."""
        for dealer in self._dealers:
            dealer.close(0)
        self._dealers.clear()
        for one in self._sockets:
            one.socket.close()
        self._sockets.clear()
        for link in self._links[2:]:
            link.close()
        del self._links[2:]

    def close(self) -> None:
        """End all processes. The relay must have lived until then."""
        lived = self._relay.poll() is None
        self._end()
        assert lived
        assert self._relay.returncode == 0

    def _end(self) -> None:
        for link in self._links:
            link.close()
        self._context.destroy(linger=0)
        self._child.kill()
        self._child.communicate()
        self._relay.terminate()
        try:
            self._relay.wait(DEADLINE_S)
        finally:
            self._relay.kill()
