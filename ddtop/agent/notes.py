"""Values that wrappers store for probes: written on the program's threads, read on the agent's
thread.

A wrapper runs inside the training, so it only stores values here. A new source may define its own
note class in its file: `Notes` makes an object of any class on request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import starmap
from operator import is_
from sys import getrefcount
from threading import get_ident
from time import monotonic_ns
from typing import Any
from weakref import ref

import msgspec

from ddtop.wire.records import TRAIN, GroupMade

PEER_WAITS_KEPT, MESHES_MAX, GROUPS_MADE_KEPT = 100, 1024, 16


class Notes(dict[type, Any]):
    """One object of each class of notes, made at its first use: `notes[LoaderNotes]`.

    It is a dictionary, because a wrapper reads it at every batch, and a dictionary look-up is one
    call of C code.
    """

    def __missing__(self, kind: type) -> Any:
        return self.setdefault(kind, kind())


class LoaderNotes:
    """The DataLoader iterator that the rank used last.

    `begun`: it has given the first batch of this pass over the data. `samplers`: what is known of
    the sources of the data (`SamplerHistory`), once there was a batch.
    """

    __slots__ = ("begun", "iterator", "samplers")

    def __init__(self) -> None:
        self.iterator: ref[Any] | None = None
        self.begun = False
        self.samplers: Any = None


_NO_ARGUMENTS: tuple[tuple[()]] = ((),)


def attribute_of(reference: ref[Any], name: str, default: Any = None) -> Any:
    """An attribute of an object of the program, the default where object or attribute is missing.

    One call of C code: this thread does not hold the object at any time at which the program can
    run. So the last reference, and with it the destructor, stays the program's.
    """
    return next(each_attribute(reference, name, default))


def each_attribute(reference: ref[Any], name: str, default: Any = None) -> Iterator[Any]:
    """The same as an iterator of C code, for more steps in the one call: what the attribute holds
    may be the program's last reference, too."""
    return map(getattr, starmap(reference, _NO_ARGUMENTS), (name,), (default,))


def is_gone(reference: ref[Any]) -> bool:
    """Whether the object no longer exists; it is not held either."""
    return next(map(is_, starmap(reference, _NO_ARGUMENTS), (None,)))


class GradientNotes:
    """Where DistributedDataParallel averages gradients.

    `group`: the name of its process group. `gloo_bytes`: the size of the gradients on a GPU that
    go through gloo although this torch has NCCL. `trains`: a digest of what a rank trains that had
    no process group at its first step.
    """

    __slots__ = ("gloo_bytes", "group", "trains")

    def __init__(self) -> None:
        self.group: str | None = None
        self.gloo_bytes: int | None = None
        self.trains: str | None = None


class PeerNotes:
    """Calls that have one peer (send, recv and their like), per process group by its name.

    `counts`: by how much they advanced the sequence number, which gloo shares with collectives.
    `calls`: how often the program called them; NCCL counts them in no sequence number.
    `bases`: the sequence number before the monitored_barrier in which this rank is now.
    `waits`: the last long waits in such calls, in ns.
    `foreign`: whether its members are not ranks of this job.
    """

    __slots__ = ("bases", "calls", "counts", "foreign", "waits")

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.calls: dict[str, int] = {}
        self.bases: dict[str, int] = {}
        self.foreign: dict[str, bool] = {}
        self.waits: deque[int] = deque(maxlen=PEER_WAITS_KEPT)

    def forget(self, group: str) -> None:
        """The group was destroyed: the next group of that name counts from zero."""
        self.counts.pop(group, None)
        self.calls.pop(group, None)
        self.bases.pop(group, None)
        self.foreign.pop(group, None)


class GroupNotes:
    """The last process groups that the program has made, oldest first.

    `splits`: how often it has split the group of all ranks.
    """

    __slots__ = ("made", "splits")

    def __init__(self) -> None:
        self.made, self.splits = deque[GroupMade](maxlen=GROUPS_MADE_KEPT), 0


_meshes: dict[tuple[object, ...], ref[Any]] = {}
"""The references have no callback: one would run inside the collector."""


def note_mesh(mesh: Any) -> None:
    """A DeviceMesh was made, perhaps before this process is a rank.

    Only one of several slices with the same dimensions is kept, because a program may make
    thousands.
    """
    if len(_meshes) >= MESHES_MAX:
        for key, reference in _meshes.copy().items():
            if reference() is None:
                _meshes.pop(key, None)
    root = getattr(mesh, "_root_mesh", None)
    _meshes[mesh.mesh_dim_names, id(mesh if root is None else root)] = ref(mesh)


def meshes() -> list[Any]:
    """The DeviceMesh objects that still exist, in the order in which they were made."""
    return [mesh for reference in list(_meshes.values()) if (mesh := reference()) is not None]


# -- The sources that frameworks register for the progress probe, and the open phases
#
# The program's threads write, the agent's thread reads. The notes belong to the process, not to a
# rank: a trainer may exist before its process knows its rank, and a forked child inherits them.


PHASES_KEPT = 16
"""Lengths of ended phases that are remembered, of each name."""
NAME_CHARACTERS = 32
USER, TRAINER, LIBRARY, ENGINE, BAR = 0, 10, 20, 30, 40
"""The priority of a source; the lowest one that counts steps is used: the program itself, a trainer
that owns the loop, a library that the loop calls, the engine below it, a progress bar."""


class SourceValues(msgspec.Struct):
    """The current values of a source. None: unknown.

    `samples` and `tokens` are totals of the whole job that only grow; the probe computes rates from
    them. `samples_per_s` is a rate that the source has computed itself.
    """

    step: int | None = None
    total_steps: int | None = None
    epoch: float | None = None
    total_epochs: float | None = None
    phase: str | None = None
    samples: float | None = None
    tokens: float | None = None
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    loss: float | None = None
    lr: float | None = None
    eta_s: float | None = None


class ProgressSource:
    """One framework. A subclass reads what the framework has already computed on the CPU.

    `name` is the `source` of the JSON. `level`: one of USER, TRAINER, LIBRARY, ENGINE, BAR.
    """

    name = ""
    level = TRAINER

    def read(self) -> SourceValues | None:
        """Its current values; None while it has none. Runs on the agent's thread.

        It must not block, import, print, or read a value of a tensor on a device. If it raises, the
        source is switched off, and the record says why.
        """
        return None


class ObjectSource(ProgressSource):
    """A framework whose numbers are attributes of one object, a trainer or an engine.

    `runs`: it is inside its loop. Registered when `note` is first called, on the program's thread.
    """

    def __init__(self) -> None:
        self._object: ref[Any] | None = None
        self.runs = False

    def note(self, own: Any, begins: bool) -> None:
        """The loop of this object begins or ends."""
        self._object, self.runs = ref(own), begins
        progress_notes.add(self)

    def read(self) -> SourceValues | None:
        """The values of the object; None if it no longer exists."""
        held = [self._object()] if self._object is not None else [None]
        if held[0] is None:
            return None
        found = self.read_from(held[0])
        let_go(held)
        return found

    def read_from(self, own: Any) -> SourceValues | None:
        """The values of this object. The rules of `read` apply."""
        raise NotImplementedError


_ALONE = next(map(getrefcount, [object()]))
"""What `getrefcount` says of an object that only a list holds. A local variable may count or not:
that is for the compiler, since Python 3.14."""

kept: list[Any] = []
"""Objects of which the agent held the last reference. If the agent dropped them, their destructors
would run on its thread: a bar would print, an engine would close."""


def let_go(held: list[Any]) -> None:
    """Empty the list without the end of any object: those that nothing else holds are kept."""
    while held:
        alone = next(map(getrefcount, reversed(held))) <= _ALONE
        last = held.pop()
        if alone:
            kept.append(last)
        del last


class Phase:
    """A phase that has begun.

    `by`: the source of the phase. `since` is monotonic ns, `thread` Python's number of its thread.
    """

    __slots__ = ("by", "name", "since", "thread")

    def __init__(self, name: str, by: str = "torch") -> None:
        self.name, self.by, self.since, self.thread = name, by, monotonic_ns(), get_ident()


class Region(Phase):
    """An expected region that has begun; it may take `up_to_s` seconds."""

    __slots__ = ("up_to_s",)

    def __init__(self, name: str, up_to_s: float) -> None:
        super().__init__(name, "user")
        self.up_to_s = up_to_s


class ProgressNotes:
    """`sources` by name, `open` phases from outer to inner, lengths in ns of `ended` ones.

    `expected`: the expected regions that are open, from outer to inner.
    """

    __slots__ = ("counts", "ended", "expected", "open", "sources")

    def __init__(self) -> None:
        self.sources: dict[str, ProgressSource] = {}
        self.open: list[Phase] = []
        self.expected: list[Region] = []
        self.ended: dict[str, deque[int]] = {}
        self.counts: dict[str, int] = {}

    def add(self, source: ProgressSource) -> None:
        """Let the probe read this source. It replaces a source of the same name."""
        self.sources[source.name] = source

    def enter(self, name: str, by: str = "torch") -> Phase:
        """A phase begins on this thread; costs about half a microsecond."""
        phase = Phase(name, by)
        self.open.append(phase)
        return phase

    def leave(self, phase: Phase) -> None:
        """It has ended."""
        if phase in self.open:
            self.open.remove(phase)
        self.note_end(phase.name, monotonic_ns() - phase.since)

    def note_end(self, name: str, length_ns: int) -> None:
        """A phase of that name was over after `length_ns`."""
        if name == TRAIN:
            return
        lengths = self.ended.get(name)
        if lengths is None:
            lengths = self.ended[name] = deque(maxlen=PHASES_KEPT)
        lengths.append(length_ns)
        self.counts[name] = self.counts.get(name, 0) + 1


progress_notes = ProgressNotes()
"""The notes of this process."""
