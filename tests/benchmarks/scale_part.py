"""One process of a large job by itself, on replayed frames: `python -m tests.benchmarks.scale_part
viewer|hub RANKS healthy|hang SECONDS`. Prints one JSON line.

The frames are those of a simulated job. Time is that of the job: a second of it takes as long as
its frames take here. So what else runs on the machine, and how many cores it has, changes little:
only CPU time of this process is counted, and not what it takes to make the frames.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any

from ddtop import registry
from ddtop.relay.server import Server
from ddtop.sim.incidents import NOT_IN_COLLECTIVE, Incident, Scenario
from ddtop.sim.job import SECOND_NS, SLOT_NS, SimulatedJob
from ddtop.viewer.engine import GC_EACH, GC_THRESHOLDS, due_for_stuck_s, period_of_looks_s
from ddtop.viewer.follower import Follower
from ddtop.wire import frames
from ddtop.wire.records import Command
from tests.benchmarks.procfs import memory_mib

LIVED_S, FAULT_S = 60, 3.0
"""The job is so old when it is joined; where it hangs, it does so this long after that."""
BEAT_S = 2
"""Each leaf says so often that it is there."""
RUN = "simulated"
Measured = dict[str, "float | None"]


class Meter:
    """Counts the CPU time of this process in some of its calls."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, call: Callable[..., Any], *arguments: Any) -> Any:
        began = time.process_time()
        try:
            return call(*arguments)
        finally:
            self.seconds += time.process_time() - began


class Replay:
    """A simulated job from the moment at which it is joined."""

    def __init__(self, ranks: int, hangs: bool, seconds: int) -> None:
        began = 1_700_000_000 * SECOND_NS
        faults = (Incident(NOT_IN_COLLECTIVE, LIVED_S + FAULT_S),) if hangs else ()
        self.job = SimulatedJob(
            ranks, scenario=Scenario(faults), began_unix_ns=began, reports_per_s=1
        )
        self.begin = self.now = began + LIVED_S * SECOND_NS
        self._until = self.begin + seconds * SECOND_NS
        self.count = self.size = 0

    def slots(self) -> Iterator[list[bytes]]:
        """What comes in each tenth of a second."""
        while self.now < self._until:
            found = list(self.job.frames(self.now, self.now + SLOT_NS))
            self.now += SLOT_NS
            self.count += len(found)
            self.size += sum(map(len, found))
            yield found


def viewer(ranks: int, hangs: bool, seconds: int) -> Measured:
    """A viewer without a screen: as the engine of the dashboard takes in, looks and judges."""
    gc.set_threshold(GC_THRESHOLDS[0] + GC_EACH * ranks, *GC_THRESHOLDS[1:])
    replay = Replay(ranks, hangs, seconds)
    follower = Follower(replay.job.name, lambda: replay.now)
    follower.newest_only = True
    joining, taking, looking = Meter(), Meter(), Meter()
    past = replay.job.joining(replay.now)
    size = _taken(follower, past, joining)
    follower.live = True
    joining(follower.look, replay.now)
    named: float | None = None
    began = due = cost_s = 0.0
    for found in replay.slots():
        _taken(follower, found, taking)
        now = (replay.now - replay.begin) / SECOND_NS
        if follower.stuck_unix_ns is not None:
            heard = (follower.stuck_unix_ns - replay.begin) / SECOND_NS
            due = due_for_stuck_s(due, began, cost_s, heard + follower.stuck_look_s)
        if now < due:
            continue
        before = looking.seconds
        _, verdict = looking(follower.look, replay.now)
        began, cost_s = now, looking.seconds - before
        due = began + period_of_looks_s(cost_s, follower.judge.wavers)
        if named is None and any(one.severity == "critical" for one in verdict.findings):
            named = now - FAULT_S + cost_s
    return {
        "join_s": joining.seconds,
        "join_mib": size / 2**20,
        "take": taking.seconds / seconds,
        "look": looking.seconds / seconds,
        "frames_per_s": replay.count / seconds,
        "bytes_per_s": replay.size / seconds,
        "named_s": named,
        "rss_mib": memory_mib(os.getpid())["rss"],
    }


def _taken(follower: Follower, data: Iterable[bytes], meter: Meter) -> int:
    """Take these frames in, a few at a time; how many bytes they were."""
    size = 0
    heap: list[bytes] = []

    def take() -> None:
        for one in heap:
            follower.take(one)

    for one in data:
        heap.append(one)
        size += len(one)
        if len(heap) == 1000:
            meter(take)
            heap.clear()
    meter(take)
    return size


def hub(ranks: int, hangs: bool, seconds: int) -> Measured:
    """The loop of the hub's relay, from the frames of its leaves to history and recording; without
    sockets, and nobody looks."""
    replay = Replay(ranks, hangs, seconds)
    job, fleet = replay.job, replay.job.fleet
    server = Server(job.name, RUN, 0, 0.0, sender=fleet.sender(0))
    # It has become a hub by the Hello of a rank on another host.
    server._role._become_hub()
    enlisting, taking = Meter(), Meter()

    def say(word: Command, host: int) -> list[bytes]:
        sender = fleet.sender(host)
        return [frames.seal(word, sender=sender, unix_ns=replay.now, mono_ns=0)]

    for host in range(1, fleet.hosts):
        greeting = ("1", "", job.name, RUN, str(ranks), "", fleet.host_name(host))
        word = say(Command("enlist", instance=str(host), arguments=greeting), host)
        enlisting(server._on_leaf, _peer(fleet.sender(host)), word)
    _to_hub(server, job.joining(replay.now), enlisting)
    for second, slots in groupby(enumerate(replay.slots()), key=lambda item: item[0] // 10):
        _to_hub(server, (one for _, found in slots for one in found), taking)
        for host in range(1 + second % BEAT_S, fleet.hosts, BEAT_S):
            word = say(Command("beat", arguments=("0", "8", "")), host)
            taking(server._on_leaf, _peer(fleet.sender(host)), word)
    hub_of = server._role.hub
    assert hub_of is not None
    found: Measured = {
        "join_s": enlisting.seconds,
        "take": taking.seconds / seconds,
        "frames_per_s": replay.count / seconds,
        "bytes_per_s": replay.size / seconds,
        "refused": float(hub_of.garbled),
        "rss_mib": memory_mib(os.getpid())["rss"],
    }
    server._close()
    return found


def _peer(sender: str) -> bytes:
    return b"\0" + sender.encode()


def _to_hub(server: Server, data: Iterable[bytes], meter: Meter) -> None:
    """As leaves send: the frames of a host in one message."""
    by_host: dict[str, list[bytes]] = {}
    for one in data:
        by_host.setdefault(frames.open_envelope(one).sender, []).append(one)
    # The ranks of its own host do not come through here.
    by_host.pop(server.sender, None)
    for sender, parts in by_host.items():
        meter(server._on_leaf, _peer(sender), parts)


def main() -> None:
    """Measure one of them."""
    what, ranks, state, seconds = sys.argv[1:5]
    part = {"viewer": viewer, "hub": hub}[what]
    with tempfile.TemporaryDirectory(prefix="ddtop-scale-") as home:
        os.environ["DDTOP_STATE"] = os.environ["DDTOP_RUNTIME"] = home
        registry.secret()
        print(json.dumps(part(int(ranks), state == "hang", int(seconds))), flush=True)


if __name__ == "__main__":
    main()
