"""One process of a large job by itself, on replayed frames: `python -m tools.benchmarks.scale_part
viewer|hub RANKS healthy|hang SECONDS`, or `... named RANKS hang HANGS`. Prints one JSON line.

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
from ddtop.diagnosis.finding import CRITICAL, Verdict
from ddtop.follow.engine import GC_EACH, GC_THRESHOLDS, Follower, due_for_stuck_s, period_of_looks_s
from ddtop.model.facts import Snapshot
from ddtop.relay.server import Server
from ddtop.sim.incidents import NOT_IN_COLLECTIVE, Incident, Scenario
from ddtop.sim.job import SECOND_NS, SLOT_NS, SimulatedJob
from ddtop.wire import frames
from ddtop.wire.records import Command
from ddtop.wire.times import rank_period_s
from tools.benchmarks.procfs import memory_mib

LIVED_S, FAULT_S = 60, 3.0
"""The job is so old when it is joined; where it hangs, it does so this long after that."""
HANG_S, BETWEEN_S = 20.0, 14.0
"""Where several hangs follow each other, each lasts so long, and all goes well for so long before
the next."""
BEAT_S = 2
"""Each leaf says so often that it is there."""
RUN = "simulated"
Measured = dict[str, Any]


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

    def __init__(self, ranks: int, faults: tuple[Incident, ...], seconds: int) -> None:
        began = 1_700_000_000 * SECOND_NS
        self.job = SimulatedJob(
            ranks, scenario=Scenario(faults), began_unix_ns=began, reports_per_s=1
        )
        self.begin = self.now = began + LIVED_S * SECOND_NS
        self._until = self.begin + seconds * SECOND_NS
        self.count = self.size = 0

    def slots(self) -> Iterator[list[bytes]]:
        """The frames that arrive in each tenth of a second."""
        while self.now < self._until:
            found = list(self.job.frames(self.now, self.now + SLOT_NS))
            self.now += SLOT_NS
            self.count += len(found)
            self.size += sum(map(len, found))
            yield found


class Watch:
    """A viewer without a screen: it joins, takes in frames, and looks when the engine of the
    dashboard would. The cost of a look is the CPU time that it takes.
    """

    def __init__(self, ranks: int, replay: Replay) -> None:
        gc.set_threshold(GC_THRESHOLDS[0] + GC_EACH * ranks, *GC_THRESHOLDS[1:])
        self._replay = replay
        self._follower = Follower(replay.job.name, lambda: replay.now)
        self._follower.newest_only = True
        self.joining, self.taking, self.looking = Meter(), Meter(), Meter()
        self.costs_s: list[float] = []
        self._began = self._due = self._cost_s = 0.0
        self._shown: Snapshot | None = None
        past = replay.job.joining(replay.now)
        self.joined_bytes = _taken(self._follower, past, self.joining)
        self._follower.live = True
        self.joining(self._follower.look, replay.now)

    def take(self, found: list[bytes]) -> tuple[Verdict, float] | None:
        """Take in these frames. Returns the findings of a look and the time when it ended (s after
        the joining), where one was due.
        """
        follower, replay = self._follower, self._replay
        _taken(follower, found, self.taking)
        now = (replay.now - replay.begin) / SECOND_NS
        if follower.stuck_unix_ns is not None:
            since = (follower.stuck_unix_ns - replay.begin) / SECOND_NS
            wanted = since + follower.stuck_look_s
            self._due = due_for_stuck_s(self._due, self._began, self._cost_s, wanted)
        if now < self._due:
            return None
        before = self.looking.seconds
        snapshot, verdict = self.looking(follower.look, replay.now)
        # The engine keeps the facts of the last look while it makes the next one.
        self._shown = snapshot
        self._began, self._cost_s = now, self.looking.seconds - before
        self.costs_s.append(self._cost_s)
        self._due = now + period_of_looks_s(self._cost_s, follower.judge.wavers)
        return verdict, now + self._cost_s


def viewer(ranks: int, hangs: bool, seconds: int) -> Measured:
    """What a viewer costs."""
    faults = (Incident(NOT_IN_COLLECTIVE, LIVED_S + FAULT_S),) if hangs else ()
    replay = Replay(ranks, faults, seconds)
    watch = Watch(ranks, replay)
    for found in replay.slots():
        watch.take(found)
    return {
        "join_s": watch.joining.seconds,
        "join_mib": watch.joined_bytes / 2**20,
        "take": watch.taking.seconds / seconds,
        "look": watch.looking.seconds / seconds,
        "look_s": max(watch.costs_s),
        "frames_per_s": replay.count / seconds,
        "bytes_per_s": replay.size / seconds,
        "rss_mib": memory_mib(os.getpid())["rss"],
    }


def named(ranks: int, _hangs: bool, count: int) -> Measured:
    """After how many seconds each of `count` hangs is named (None: not while it lasted).

    The hangs begin at different moments between the ranks' reports and between the looks.
    """
    turn_s = rank_period_s(ranks)
    faults = []
    for number in range(count):
        begin_s = LIVED_S + FAULT_S + number * (HANG_S + BETWEEN_S + turn_s / count)
        culprit = (number * 7919 + 13) % ranks
        faults.append(Incident(NOT_IN_COLLECTIVE, begin_s, begin_s + HANG_S, culprit))
    over_s = (faults[-1].end_s or 0.0) - LIVED_S
    replay = Replay(ranks, tuple(faults), int(over_s))
    watch = Watch(ranks, replay)
    after_s: dict[int, float] = {}
    for found in replay.slots():
        looked = watch.take(found)
        worst = [one for one in looked[0].findings if one.severity == CRITICAL] if looked else []
        blamed = {rank for one in worst for rank in one.ranks}
        for fault in faults:
            if looked is not None and fault.rank in blamed and fault.rank is not None:
                after_s.setdefault(fault.rank, looked[1] + LIVED_S - fault.begin_s)
    return {
        "named_s": [after_s.get(one.rank or 0) for one in faults],
        "look_s": max(watch.costs_s),
    }


def _taken(follower: Follower, data: Iterable[bytes], meter: Meter) -> int:
    """Take in these frames, a few at a time. Returns the number of bytes."""
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


def hub(ranks: int, _hangs: bool, seconds: int) -> Measured:
    """The loop of the hub's relay, from the frames of its leaves to history and recording; without
    sockets and without a viewer.
    """
    replay = Replay(ranks, (), seconds)
    job, fleet = replay.job, replay.job.fleet
    server = Server(job.name, RUN, 0, 0.0, sender=fleet.sender(0))
    # A Hello of a rank on another host has made it a hub.
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
    """As leaves send them: the frames of a host in one message."""
    by_host: dict[str, list[bytes]] = {}
    for one in data:
        by_host.setdefault(frames.open_envelope(one).sender, []).append(one)
    # The ranks of the hub's own host do not pass through here.
    by_host.pop(server.sender, None)
    for sender, parts in by_host.items():
        meter(server._on_leaf, _peer(sender), parts)


def main() -> None:
    """Measure one process."""
    what, ranks, state, seconds = sys.argv[1:5]
    part = {"viewer": viewer, "hub": hub, "named": named}[what]
    with tempfile.TemporaryDirectory(prefix="ddtop-scale-") as home:
        os.environ["DDTOP_STATE"] = os.environ["DDTOP_RUNTIME"] = home
        registry.secret()
        print(json.dumps(part(int(ranks), state == "hang", int(seconds))), flush=True)


if __name__ == "__main__":
    main()
