"""A job by hand on several hosts: hosts that fall silent, that have other clocks, whose launchers
count restarts by themselves.

job = SpreadJob(8, hosts=4).trains(5)
job.goes_silent("node2")
job.others_wait(4, 5)
job.passes(12)
assert job.kinds() == [("critical", "host-lost", (4, 5))]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from ddtop.wire import frames
from ddtop.wire.records import (
    HUB,
    LEAF,
    AnyRecord,
    Group,
    Groups,
    Hello,
    HostClock,
    HostState,
    HubLink,
)
from ddtop.wire.times import shift
from tests.jobs import SECOND, FakeJob, FakeRank, Frame, unix_ns


class SpreadJob(FakeJob):
    """`node0` has the hub. `attempts`: the restart count of each host's launcher. `silent`: hosts
    whose records do not arrive.
    """

    def __init__(self, world_size: int = 4, hosts: int = 2) -> None:
        self.attempts: dict[str, int] = {}
        self.silent: set[str] = set()
        self.host_of_rank: dict[int, str] = {}
        self.names: dict[str, str] = {}
        self.begun_s = 0.0
        super().__init__(world_size, hosts)

    def goes_silent(self, *hosts: str) -> None:
        """Records of these hosts no longer arrive."""
        self.silent |= set(hosts)

    def comes_back(self, *hosts: str) -> None:
        """Records of these hosts arrive again."""
        self.silent -= set(hosts)

    def ranks_on(self, host: str) -> list[FakeRank]:
        """The living ranks of the host."""
        return [rank for rank in self.ranks if self.host_of(rank) == host and not rank.gone]

    def host_of(self, rank: FakeRank) -> str:
        return self.host_of_rank.get(rank.number) or super().host_of(rank)

    def say(
        self,
        record: AnyRecord,
        rank: FakeRank | None = None,
        at_s: float | None = None,
        sender: str | None = None,
    ) -> None:
        host = sender or (self.host_of(rank) if rank else "node0")
        if host in self.silent:
            return
        self.attempt = self.attempts.get(host, 0)
        if isinstance(record, HostState):
            role = HUB if host == "node0" else LEAF
            link = HubLink(role, "node0:29600", None if role == HUB else True)
            record = _with(
                record,
                host=self.names.get(host, host),
                hub=link,
                clock=_RIGHT if role == LEAF else None,
            )
        elif isinstance(record, Hello):
            record = _with(
                record,
                host=self.names.get(host, host),
                attempt=self.attempt,
                started_unix_ns=unix_ns(self.begun_s),
            )
        super().say(record, rank, at_s, sender)

    def starts_again(
        self,
        numbers: Mapping[str, Iterable[int]],
        world_size: int,
        counts: Iterable[str],
        later_s: float = 0.1,
    ) -> None:
        """All processes have ended. These hosts start these ranks, in this order. `counts`: the
        hosts whose launchers count a restart.
        """
        for rank in self.ranks:
            if not rank.gone:
                rank.ends(signal=15)
        self.begins_again(numbers, world_size, counts, later_s)

    def begins_again(
        self,
        numbers: Mapping[str, Iterable[int]],
        world_size: int,
        counts: Iterable[str],
        later_s: float = 0.1,
    ) -> None:
        """The same, whatever happened to the previous ranks."""
        for host in counts:
            self.attempts[host] = self.attempts.get(host, 0) + 1
        pids = max(rank.pid for rank in self.ranks) + 100
        self.now = self.begun_s = round(self.now + 20.0)
        self.world_size = world_size
        self.host_of_rank = {number: host for host, mine in numbers.items() for number in mine}
        self.groups = {"0": Group("0", "default_pg", tuple(range(world_size)), "gloo")}
        self.ranks = [FakeRank(self, number, pids + number) for number in range(world_size)]
        for at, number in enumerate(self.host_of_rank):
            rank = self.ranks[number]
            rank.seen = True
            self.say(rank.hello(), rank, self.now + later_s * at)
        for number in self.host_of_rank:
            self.say(Groups(tuple(self.groups.values())), self.ranks[number], self.now + 1.0)
        self.now += 1.0


_RIGHT = HostClock(0, 100_000)


def _with(record: AnyRecord, **changes: object) -> AnyRecord:
    return msgspec.structs.replace(record, **changes)


def skewed(records: Iterable[Frame], offsets_s: Mapping[str, float]) -> list[Frame]:
    """The same records with clocks that are behind the hub's by this much, as their relays have
    measured.
    """
    found = []
    for envelope, record in records:
        offset_ns = round(offsets_s.get(envelope.sender, 0.0) * SECOND)
        told = shift(record, -offset_ns)
        if isinstance(told, HostState) and offset_ns:
            told = _with(told, clock=HostClock(offset_ns, 100_000))
        data = frames.seal(
            told,
            sender=envelope.sender,
            unix_ns=envelope.unix_ns - offset_ns,
            mono_ns=envelope.mono_ns,
            attempt=envelope.attempt,
            rank=envelope.rank,
            pid=envelope.pid,
        )
        opened = frames.open_envelope(data)
        found.append((opened, frames.open_record(opened)))
    return found
