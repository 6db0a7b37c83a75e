"""Gives each communicator the same name on all its members, without communication.

Handles are local, and MPI uses them again. But all members made the communicator by the same
collective call of the same parent. The name of the parent, the number of that call and the world
rank of the new communicator's first member are the same on all of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from ddtop.agent.plain import is_a, path_of
from ddtop.agent.probes.calls import CallNotes, CallsMade
from ddtop.wire import mpi as layout
from ddtop.wire.records import Group, pack

SCRATCH_AT = 7
"""A word that is never read. Communicators without a place in the table count there."""
TRAFFIC_KEYS_MAX, MEMBERS_TOLD_BY_ALL = 256, 512
TOLD_AT_ONCE = 8
"""The first communicators are reported before the program goes on, because its next call may hold
the GIL. A loop that makes thousands of them is not slowed down."""


OPENINGS = {
    "Spawn": "spawned world",
    "Spawn_multiple": "spawned world",
    "Get_parent": "world of the parent",
    "Connect": "world behind Connect",
    "Accept": "world behind Accept",
}
"""Calls that give a communicator with another world, and what it is."""


class Comm:
    """A communicator as this rank has it.

    `peers[r]`: the world rank of its rank r (of the remote group of an intercommunicator). `order`:
    that of its collective calls, if it is reported. `files`: how often its members have opened one.
    `last`: the code of the last collective that has returned.
    """

    __slots__ = (
        "done_at",
        "enqueued_at",
        "files",
        "group",
        "index",
        "last",
        "last_at",
        "last_tag",
        "order",
        "peers",
        "seq",
        "traffic",
        "uid",
        "wild",
    )

    def __init__(self, uid: int, index: int, peers: tuple[int, ...], group: Group | None) -> None:
        self.uid, self.index, self.peers, self.group = uid, index, peers, group
        self.seq = self.files = self.last = 0
        self.order: CallsMade | None = None
        self.traffic: dict[tuple[int, int], list[int]] = {}
        self.last_tag: dict[int, int] = {}
        """Peer -> the tag of the last send to it."""
        # The counts are not used if there are too many tags, or if the starts of persistent
        # requests are not seen.
        self.wild = False
        base = layout.COMMS_AT + index * layout.COMM_WORDS
        known = index >= 0
        self.enqueued_at = base + layout.COMM_ENQUEUED if known else SCRATCH_AT
        self.done_at = base + layout.COMM_DONE if known else SCRATCH_AT
        self.last_at = base + layout.COMM_LAST if known else SCRATCH_AT

    def count(self, peer: int, tag: int, which: int) -> None:
        """One more send (`which` 0) or receive (1) has begun."""
        found = self.traffic.get((peer, tag))
        if found is None:
            if len(self.traffic) >= TRAFFIC_KEYS_MAX:
                self.wild = True
                return
            found = self.traffic[peer, tag] = [0, 0]
        found[which] += 1
        if not which:
            self.last_tag[peer] = tag


class Communicators:
    """All communicators by handle. Used on the thread that makes a communicator."""

    def __init__(self, mpi: Any, words: memoryview, backend: str) -> None:
        self._mpi, self._words, self._backend = mpi, words, backend
        self.by_handle: dict[int, Comm] = {}
        self.calls, self._free = CallNotes(), list(range(layout.COMMS - 1, -1, -1))
        self._outside, self.handle_of = 0, _handle_reader(mpi)
        self._world_group: Any = None
        self._rank, self._null = mpi.COMM_WORLD.Get_rank(), self.handle_of(mpi.COMM_NULL)
        self.tell: Callable[[], None] | None = None
        self._told = 0

    def groups(self) -> tuple[Group, ...]:
        """The groups that are reported."""
        return tuple(comm.group for comm in list(self.by_handle.values()) if comm.group is not None)

    def add_world(self) -> None:
        """COMM_WORLD and COMM_SELF."""
        world = self._mpi.COMM_WORLD
        self._world_group = world.Get_group()
        self._add(world, layout.WORLD_UID, "MPI_COMM_WORLD", tuple(range(world.Get_size())))
        comm = Comm(0, -1, (world.Get_rank(),), None)
        self.by_handle[self.handle_of(self._mpi.COMM_SELF)] = comm

    def adopt(self, made: Any, how: str, parent: Comm, seq: int) -> None:
        """A collective call of the parent has made a communicator."""
        if not is_a(made, self._mpi.Comm) or self.handle_of(made) == self._null:
            return
        if not parent.uid and how not in OPENINGS:
            return
        handle = self.handle_of(made)
        # Not by its own methods: it may be of a class of the program.
        mpi = self._mpi
        between = mpi.Comm.Is_inter(made)
        of = mpi.Intercomm.Get_remote_group if between else mpi.Comm.Get_group
        members = self._members(of(made))
        if -1 in members:
            self._add_outside(made, how, members)
            return
        if between or not members or len(members) == 1:
            self.by_handle[handle] = Comm(0, -1, members, None)
            return
        uid = uid_of(parent.uid, how, seq, members[0])
        text = f"{how} #{seq}"
        if len(members) != len(parent.peers):
            # The same call has made others beside it.
            text += f" from rank {members[0]}"
        if parent.uid != layout.WORLD_UID:
            text += (
                f" of {parent.group.description if parent.group is not None else 'a communicator'}"
            )
        self._add(made, uid, text[:80], members)
        if self.tell is not None and self._told < TOLD_AT_ONCE:
            self._told += 1
            self.tell()

    def _add_outside(self, made: Any, how: str, members: tuple[int, ...]) -> None:
        """A communicator with another world: its calls are shown, and wait for no rank of this
        one.
        """
        self._outside += 1
        others = members.count(-1)
        text = f"{OPENINGS.get(how, how)} #{self._outside}, {others} outside"
        uid = uid_of(layout.WORLD_UID, how, self._outside, self._rank) | layout.OUTSIDE_BIT
        self._add(made, uid, text, tuple(one if one >= 0 else layout.ANY for one in members))

    def adopt_file(self, made: Any, how: str, given: tuple[Any, ...]) -> None:
        """The members of a communicator have opened a file. `given`: the arguments of File.Open."""
        parent = self.by_handle.get(self.handle_of(given[0])) if given else None
        if parent is not None and parent.uid and len(parent.peers) > 1:
            parent.files += 1
            path = path_of(given[1]) if len(given) > 1 else None
            name = os.path.basename(path or "of MPI")
            uid = uid_of(parent.uid, how, parent.files, parent.peers[0])
            self._add(made, uid, f"file {name}"[:80], parent.peers, compares=False)

    def drop(self, handle: int) -> None:
        """The communicator was freed: a new one may get the same handle."""
        comm = self.by_handle.pop(handle, None)
        if comm is not None and comm.index >= 0:
            self.calls.forget(layout.group_name(comm.uid))
            at = layout.COMMS_AT + comm.index * layout.COMM_WORDS
            for word in range(layout.COMM_WORDS):
                self._words[at + word] = 0
            self._free.append(comm.index)

    def _add(
        self, made: Any, uid: int, text: str, members: tuple[int, ...], compares: bool = True
    ) -> None:
        """`compares`: note the order of its calls. That of a file ends when it is closed."""
        handle = self.handle_of(made)
        self.drop(handle)
        if not self._free:
            # Its calls are shown without a name.
            self.by_handle[handle] = Comm(0, -1, members, None)
            return
        index = self._free.pop()
        # Otherwise each of thousands of ranks would report the same thousands.
        tells = len(members) <= MEMBERS_TOLD_BY_ALL or self._rank in members[:2]
        name = layout.group_name(uid)
        outside = "" if layout.is_outside(name) else None
        told = members if tells and outside is None else ()
        group = pack(Group(name, text, told, self._backend, foreign=outside))
        comm = self.by_handle[handle] = Comm(uid, index, members, group)
        if compares:
            comm.order = self.calls.of(name, lambda: comm.seq)
        self._words[layout.COMMS_AT + index * layout.COMM_WORDS + layout.COMM_UID] = uid

    def _members(self, group: Any) -> tuple[int, ...]:
        """World ranks of the group's members, -1 for one of another world."""
        try:
            found = self._mpi.Group.Translate_ranks(
                group, list(range(group.Get_size())), self._world_group
            )
            return tuple(rank if rank >= 0 else -1 for rank in found)
        finally:
            group.Free()


def uid_of(parent: int, how: str, seq: int, first: int) -> int:
    """A number for the communicator that the parent's collective `seq` made with this first member.

    It is never the number of the world.
    """
    digest = blake2b(f"{parent}|{how}|{seq}|{first}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 2) | 2


def _handle_reader(mpi: Any) -> Any:
    """mpi4py's function for the handle of a communicator or a request.

    Before 4.0 it has another name.
    """
    found = getattr(mpi, "_handleof", None)
    return found if found is not None else lambda thing: thing.py2f()
