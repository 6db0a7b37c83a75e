"""Plays the relay of a simulated job in real time: `python -m tools.benchmarks.sim_relay RANKS
healthy|hang [gpus]`.

A real link, a real history and a real entry in the state folder, so that a view attaches to it as
to any job. Every rank reports once a second, whether somebody looks or not. Prints "ready" when a
view can attach, and goes on until it is ended.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable

from ddtop import registry
from ddtop.link.relay_side import VIEW, RelayLink
from ddtop.relay.history import LATEST_HUB_MAX, FrameHistory
from ddtop.sim.incidents import NOT_IN_COLLECTIVE, WHOLE, Incident, Scenario
from ddtop.sim.job import SECOND_NS, SLOT_NS, SimulatedJob
from ddtop.wire import frames
from ddtop.wire.records import Command, Reply

RUN = "r1"
LIVED_S, HANG_S = 60, 8.0
"""The job began so long ago; it stands still since so long before the viewer comes."""
ENTRY_S = 10.0


class SimRelay:
    """One relay of all hosts; a single thread."""

    def __init__(self, ranks: int, hangs: bool, gpus: bool = False) -> None:
        incidents = (Incident(NOT_IN_COLLECTIVE, LIVED_S - HANG_S),) if hangs else ()
        scenario = Scenario(incidents, gpus=WHOLE if gpus else None)
        began = (time.time_ns() - LIVED_S * SECOND_NS) // SLOT_NS * SLOT_NS
        self.job = SimulatedJob(ranks, scenario=scenario, began_unix_ns=began, reports_per_s=1)
        self._link = RelayLink(
            registry.socket_path(self.job.name, RUN), registry.secret(), "127.0.0.1"
        )
        self._history = FrameHistory()
        self._history.latest_max = LATEST_HUB_MAX
        self._viewers: list[bytes] = []
        self._ranks = ranks
        self._entered = 0.0

    def serve(self) -> None:
        """Run for ever."""
        done = time.time_ns() // SLOT_NS * SLOT_NS
        # Made before anybody joins: a relay has its history, and a viewer does not wait for it.
        self._keep(self.job.joining(done))
        ready = False
        while True:
            if not ready and time.time_ns() < done + SECOND_NS:
                self._write_entry()
                print("ready", flush=True)
                ready = True
            self._answer((done + SLOT_NS - time.time_ns()) / SECOND_NS)
            if time.time_ns() >= done + SLOT_NS:
                for frame in self._keep(self.job.frames(done, done + SLOT_NS)):
                    self._link.broadcast(self._viewers, frame)
                done += SLOT_NS
            if ready and time.monotonic() - self._entered > ENTRY_S:
                self._write_entry()

    def _keep(self, found: Iterable[bytes]) -> list[bytes]:
        """These frames, which are history from now on."""
        made = list(found)
        for frame in made:
            self._history.keep(frames.open_envelope(frame), frame)
        return made

    def _answer(self, seconds: float) -> None:
        for kind, _ in self._link.wait(max(seconds, 0.0)):
            for peer, data, _ in self._link.receive(kind):
                record = frames.open_record(frames.open_envelope(data))
                if kind == VIEW and isinstance(record, Command) and record.name == "join":
                    self._welcome(peer, record.history_s)

    def _welcome(self, peer: bytes, history_s: float) -> None:
        history = self._history.frames_since(time.time_ns() - int(history_s * SECOND_NS))
        self._link.send(VIEW, peer, _sealed(Reply("joined", count=len(history), instance="sim")))
        for frame in history:
            self._link.send(VIEW, peer, frame)
        self._link.send(VIEW, peer, _sealed(Reply("live", instance="sim")))
        self._viewers.append(peer)

    def _write_entry(self) -> None:
        self._entered, now = time.monotonic(), time.time_ns()
        registry.write_entry(
            registry.JobEntry(
                schema=registry.SCHEMA,
                job=self.job.name,
                run=RUN,
                host="node0",
                sender=registry.host_identity(),
                relay_pid=os.getpid(),
                relay_start_ticks=registry.start_ticks(os.getpid()) or 0,
                address="127.0.0.1",
                port=self._link.port,
                socket=str(registry.socket_path(self.job.name, RUN)),
                script="train",
                world_size=self._ranks,
                reporting=self._ranks,
                started_unix_ns=self.job.began_unix_ns,
                heartbeat_unix_ns=now,
            )
        )


def _sealed(record: Reply) -> bytes:
    return frames.seal(record, sender="sim", unix_ns=time.time_ns(), mono_ns=time.monotonic_ns())


if __name__ == "__main__":
    SimRelay(int(sys.argv[1]), sys.argv[2] == "hang", "gpus" in sys.argv).serve()
