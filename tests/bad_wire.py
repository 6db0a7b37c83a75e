"""A network as bad as asked for: carries Ethernet frames between the hosts of `tests.netns`, and
loses, delays or blocks them.

Not `tc netem`: many kernels come without that qdisc, CI's among them, and iptables may be missing
too. A process with one packet socket a cable needs nothing but the right to open it; it is
deterministic as far as the order of frames is. Frames travel with the kernel's own header for
checksums and segments still to be made (PACKET_VNET_HDR), so that whole 64 KB segments pass: 280
MB/s.

    python -m tests.bad_wire PREFIX SEED CABLE...

runs in a namespace that has one veth end a host, named like the host, whose other end has the MAC
02:00:00:00:00:NUMBER. A line of JSON on stdin changes a cable and is answered by a line; when stdin
ends (whoever made the network has gone, however), the process ends all that lives in the namespaces
of this prefix and removes them.
"""

from __future__ import annotations

import heapq
import itertools
import json
import os
import random
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass, replace

from tests.netns import sweep

SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING, ETH_P_ALL = 263, 15, 23, 3
VNET_BYTES, FRAME_BYTES_MAX = 10, 1 << 17
WAITING_MAX = 20_000
"""Frames that may wait on a slow cable; more are lost, as in a router."""


@dataclass(frozen=True)
class Cable:
    """What happens to the frames of one host. A frame between two hosts goes through both of their
    cables.

    `loss_ratio` and the delays hold for each way; `blocked`: "", "to" the host, "from" it, or
    "both".
    """

    loss_ratio: float = 0.0
    delay_to_ms: float = 0.0
    delay_from_ms: float = 0.0
    blocked: str = ""


class Switch:
    """Carries frames until stdin ends."""

    def __init__(self, names: list[str], seed: int) -> None:
        self.sockets = {name: _open(name) for name in names}
        self.cables = {name: Cable() for name in names}
        self.macs = {bytes([2, 0, 0, 0, 0, number]): name for number, name in enumerate(names)}
        self.waiting: list[tuple[float, int, str, bytes]] = []
        self.numbers = itertools.count()
        self.random = random.Random(seed)
        self.carried = self.lost = 0

    def serve(self) -> None:
        """The loop."""
        poll = select.poll()
        owners = {one.fileno(): name for name, one in self.sockets.items()}
        for descriptor in (0, *owners):
            poll.register(descriptor, select.POLLIN)
        while True:
            left_ms = (self.waiting[0][0] - time.monotonic()) * 1000 if self.waiting else None
            for descriptor, _ in poll.poll(None if left_ms is None else max(0.0, left_ms)):
                if descriptor:
                    self.take(owners[descriptor])
                elif not self.obey():
                    return
            while self.waiting and self.waiting[0][0] <= time.monotonic():
                _, _, name, frame = heapq.heappop(self.waiting)
                self.put(name, frame)

    def take(self, source: str) -> None:
        """What this host has sent."""
        for _ in range(200):
            try:
                frame = self.sockets[source].recv(FRAME_BYTES_MAX)
            except OSError:
                return
            target = self.macs.get(frame[VNET_BYTES : VNET_BYTES + 6])
            for name in [target] if target else [name for name in self.sockets if name != source]:
                self.carry(source, name, frame)

    def carry(self, source: str, target: str, frame: bytes) -> None:
        """Send one frame through two cables."""
        out, into = self.cables[source], self.cables[target]
        lost = any(one.loss_ratio and self.random.random() < one.loss_ratio for one in (out, into))
        if (
            lost
            or out.blocked in ("from", "both")
            or into.blocked in ("to", "both")
            or len(self.waiting) > WAITING_MAX
        ):
            self.lost += 1
            return
        delay_ms = out.delay_from_ms + into.delay_to_ms
        if delay_ms:
            at = time.monotonic() + delay_ms / 1000
            heapq.heappush(self.waiting, (at, next(self.numbers), target, frame))
        else:
            self.put(target, frame)

    def put(self, target: str, frame: bytes) -> None:
        """Put the frame into the receiver's end of its cable."""
        try:
            self.sockets[target].send(frame)
            self.carried += 1
        except OSError:
            self.lost += 1  # That end is down, or its queue is full.

    def obey(self) -> bool:
        """Apply one line of stdin. Returns False at its end."""
        line = sys.stdin.readline()
        if not line:
            return False
        name, settings = json.loads(line)
        self.cables[name] = replace(Cable(), **settings)
        print(json.dumps([self.carried, self.lost]), flush=True)
        return True


def _open(name: str) -> socket.socket:
    one = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    one.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    one.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    one.bind((name, ETH_P_ALL))
    one.setblocking(False)
    return one


def main() -> None:
    """Serve, then remove everything."""
    prefix, seed, *names = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        switch = Switch(names, int(seed))
        print("ready", flush=True)
        switch.serve()
    finally:
        sweep(prefix, but=os.getpid())


if __name__ == "__main__":
    main()
