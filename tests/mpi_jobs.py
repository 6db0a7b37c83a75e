"""A job under MPI whose records are made by hand: every rank's calls, reported by its agent or,
from the state page, by its relay.

job = MpiJob(3).passes(10)
job.in_collective("Barrier", 0, 1)
job.ranks[2].stands_at("load", "sim.py", 40)
job.passes(8)
"""

from __future__ import annotations

from typing import Any

from ddtop.wire.mpi import WORLD_UID, MpiCall, MpiComm, MpiPart, MpiState, MpiTraffic, group_name
from ddtop.wire.records import Group
from tests.jobs import FakeJob
from tests.ranks import unix_ns

WORLD = group_name(WORLD_UID)


class MpiJob(FakeJob):
    """All ranks have made `done` collectives of the world; nobody has a process group of torch."""

    def __init__(self, world_size: int = 3, done: int = 20) -> None:
        super().__init__(world_size)
        self.done = done
        self.groups = {WORLD: Group(WORLD, "MPI_COMM_WORLD", tuple(range(world_size)), "openmpi")}
        for rank in self.ranks:
            rank.standings.clear()
            self.greet(rank)
            self.outside(rank.number)

    def outside(self, number: int, done: int | None = None, **more: Any) -> None:
        """This rank is in no call of MPI."""
        comm = MpiComm(WORLD, done or self.done, done or self.done, "Barrier")
        self.ranks[number].mpi = MpiState(unix_ns(self.now), (), (comm,), **more)

    def inside(self, number: int, call: MpiCall, by_relay: bool = False, **more: Any) -> None:
        """This rank is in a call, spinning. `by_relay`: the call holds the GIL, so the agent is
        silent.
        """
        rank, seq = self.ranks[number], call.seq or 0
        rank.trains, rank.activity, rank.cores, rank.letter = False, "collective", 1.0, "R"
        state = MpiState(
            unix_ns(self.now), (call,), (MpiComm(WORLD, max(self.done, seq), self.done),), **more
        )
        if by_relay:
            rank.reports = False
            rank.seen_outside = {"mpi": state}
        else:
            rank.mpi = state

    def call(self, name: str, **more: Any) -> MpiCall:
        """A call that begins now."""
        return MpiCall(name, unix_ns(self.now), 1, **more)

    def in_collective(self, name: str, *numbers: int, by_relay: bool = False, **more: Any) -> None:
        """These ranks are in the next collective of the world."""
        for number in numbers:
            self.inside(number, self.call(name, group=WORLD, seq=self.done + 1, **more), by_relay)

    def in_single(
        self, number: int, name: str, peer: int | None, tag: int | None, **more: Any
    ) -> None:
        """This rank is in a send or receive of the world."""
        self.inside(number, self.call(name, group=WORLD, peer=peer, tag=tag), **more)

    def waits_for(self, number: int, name: str, *parts: tuple[str, int, int], **more: Any) -> None:
        """This rank waits for requests: each a name, a peer and a tag."""
        found = tuple(MpiPart(kind, WORLD, None, peer, tag) for kind, peer, tag in parts)
        self.inside(number, self.call(name, parts=found), **more)


def sent(
    peer: int | None, tag: int, count: int = 1, received: int = 0, is_last: bool = False
) -> MpiTraffic:
    """What a rank has begun to send to that peer, and to receive from it."""
    return MpiTraffic(WORLD, peer, tag, count, received, is_last)
