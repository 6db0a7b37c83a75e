"""Plays the relays of many simulated jobs: `python -m tools.benchmarks.sim_fleet JOBS RANKS`.

Every tenth job hangs. Prints "ready" when a view can attach to each of them, and runs until it is
ended.
"""

from __future__ import annotations

import os
import sys
import time

from ddtop import registry
from ddtop.link.relay_side import VIEW, RelayLink
from ddtop.sim.incidents import NOT_IN_COLLECTIVE, Incident, Scenario
from ddtop.sim.job import SECOND_NS, SLOT_NS, SimulatedJob
from ddtop.wire import frames
from ddtop.wire.records import Command, Reply

LIVED_S, HANG_S = 60, 20.0
ENTRY_S = 10.0
HANGS_EVERY = 10


class OneOfMany:
    """One relay, which yields to the others after each turn."""

    def __init__(self, number: int, ranks: int) -> None:
        incidents = ()
        if number % HANGS_EVERY == 0:
            incidents = (Incident(NOT_IN_COLLECTIVE, LIVED_S - HANG_S),)
        began = (time.time_ns() - LIVED_S * SECOND_NS) // SLOT_NS * SLOT_NS
        self._job = SimulatedJob(
            ranks, number, Scenario(incidents), began_unix_ns=began, reports_per_s=1
        )
        self._name, self._run, self._ranks = f"job-{number:03}", f"r{number}", ranks
        path = registry.socket_path(self._name, self._run)
        self._link = RelayLink(path, registry.secret(), "127.0.0.1")
        self._viewers: list[bytes] = []
        self._done = time.time_ns() // SLOT_NS * SLOT_NS
        self._entered = 0.0

    def turn(self) -> None:
        """Answer new connections, and send what is due."""
        for kind, _ in self._link.wait(0.0):
            for peer, data, _ in self._link.receive(kind):
                record = frames.open_record(frames.open_envelope(data))
                if kind == VIEW and isinstance(record, Command) and record.name == "join":
                    self._welcome(peer)
        while time.time_ns() >= self._done + SLOT_NS:
            until = self._done + SLOT_NS
            for frame in self._job.frames(self._done, until) if self._viewers else ():
                self._link.broadcast(self._viewers, frame)
            self._done = until
        if time.monotonic() - self._entered > ENTRY_S:
            self._write_entry()

    def _welcome(self, peer: bytes) -> None:
        history = list(self._job.joining(self._done))
        self._link.send(VIEW, peer, _sealed(Reply("joined", count=len(history), instance="sim")))
        for frame in history:
            self._link.send(VIEW, peer, frame)
        self._link.send(VIEW, peer, _sealed(Reply("live", instance="sim")))
        self._viewers = [peer]

    def _write_entry(self) -> None:
        self._entered, now = time.monotonic(), time.time_ns()
        me = registry.start_ticks(os.getpid()) or 0
        registry.write_entry(
            registry.JobEntry(
                registry.SCHEMA, self._name, self._run, "node0", registry.host_identity(),
                os.getpid(), me, "127.0.0.1", self._link.port, "", "train.py", self._ranks,
                self._ranks, self._job.began_unix_ns, now,
            )
        )  # fmt: skip


def _sealed(record: Reply) -> bytes:
    return frames.seal(record, sender="sim", unix_ns=time.time_ns(), mono_ns=time.monotonic_ns())


def main(jobs: int, ranks: int) -> None:
    """Run for ever."""
    relays = [OneOfMany(number, ranks) for number in range(jobs)]
    for one in relays:
        one.turn()
    print("ready", flush=True)
    while True:
        began = time.monotonic()
        for one in relays:
            one.turn()
        time.sleep(max(0.05 - (time.monotonic() - began), 0.001))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
