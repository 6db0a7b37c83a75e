"""Connections to a relay that other processes made: the kernel records which process made a
connection, whichever process sends over it later.

A test plays many ranks. Each has a process of its own, which connects, hands the connection over
and goes on.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from ddtop.link.rank_side import OwnSocket, RankLink

DEADLINE_S = 20.0
HANDS_OVER = """
import socket, sys, threading
def _hand_over(path, descriptor):
    with socket.socket(fileno=descriptor) as asked:
        while asked.recv(1):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
                try:
                    link.connect(path)
                except OSError:
                    asked.sendall(b"n")
                else:
                    socket.send_fds(asked, [b"y"], [link.fileno()])
threading.Thread(target=_hand_over, args=(sys.argv[1], int(sys.argv[2])), daemon=True).start()
"""


class BorrowedLink(RankLink):
    """A rank's link over connections that another process makes for it, as many as it needs."""

    def __init__(self, path: Path, asks: socket.socket) -> None:
        self._asks = asks
        super().__init__(path)

    def _connect(self) -> OwnSocket:
        try:
            self._asks.sendall(b"?")
            _, descriptors, _, _ = socket.recv_fds(self._asks, 1, 1)
        except OSError:
            # It has ended, or is stopped.
            descriptors = []
        if not descriptors:
            raise ConnectionRefusedError(111, "the process could not connect")
        os.set_blocking(descriptors[0], False)
        return OwnSocket(descriptors[0])

    def close(self, linger_ms: int = 0) -> None:
        super().close(linger_ms)
        self._asks.close()


def process_with_link(
    path: Path, code: str, **more: object
) -> tuple[subprocess.Popen[bytes], RankLink]:
    """A Python process that runs this code, and a link over a connection that it made."""
    ours, theirs = socket.socketpair()
    with theirs:
        child = subprocess.Popen(
            [sys.executable, "-c", HANDS_OVER + code, str(path), str(theirs.fileno())],
            stdin=subprocess.PIPE,
            pass_fds=(theirs.fileno(),),
            **more,  # type: ignore[call-overload]
        )
    ours.settimeout(DEADLINE_S)
    link = BorrowedLink(path, ours)
    # Before the process does anything else, as an agent does.
    end = time.monotonic() + DEADLINE_S
    while not link.is_connected() and child.poll() is None and time.monotonic() < end:
        link.wait(0.02)
    ours.settimeout(0.5)
    return child, link


def say(link: RankLink, frame: bytes) -> None:
    """Send a frame as an agent's loop does: retry until the frame has left."""
    link.send(frame)
    end = time.monotonic() + DEADLINE_S
    while link.has_more() and time.monotonic() < end:
        link.wait(0.01)


def raw(path: Path) -> socket.socket:
    """A connection of this process that sends nothing."""
    end = time.monotonic() + DEADLINE_S
    while True:
        found = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            found.connect(os.fspath(path))
        except (FileNotFoundError, ConnectionRefusedError):
            found.close()
            assert time.monotonic() < end
            time.sleep(0.01)
            continue
        return found
