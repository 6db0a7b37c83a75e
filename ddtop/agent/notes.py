"""Values that wrappers store for probes: written on the program's threads, read on the agent's
thread.

A wrapper runs inside the training, so it only stores values here. A new source may define its own
note class in its file: `Notes` makes an object of any class on request.
"""

from __future__ import annotations

from collections import deque
from itertools import starmap
from operator import is_
from typing import Any
from weakref import ref

PEER_WAITS_KEPT = 100
MESHES_MAX = 1024


class Notes(dict[type, Any]):
    """One object of each class of notes, made at its first use: `notes[LoaderNotes]`.

    It is a dictionary, because a wrapper reads it at every batch, and a dictionary look-up is one
    call of C code.
    """

    def __missing__(self, kind: type) -> Any:
        return self.setdefault(kind, kind())


class LoaderNotes:
    """The DataLoader iterator that the rank used last.

    `first_batch`: a digest of the first batch of this pass over the data, 0 if it has no numbers,
    None before the first batch.
    """

    __slots__ = ("first_batch", "iterator")

    def __init__(self) -> None:
        self.iterator: ref[Any] | None = None
        self.first_batch: int | None = None


_NO_ARGUMENTS: tuple[tuple[()]] = ((),)


def attribute_of(one: ref[Any], name: str, default: Any = None) -> Any:
    """An attribute of an object of the program, the default where object or attribute is missing.

    One call of C code: this thread does not hold the object at any time at which the program can
    run. So the last reference, and with it the destructor, stays the program's.
    """
    return next(map(getattr, starmap(one, _NO_ARGUMENTS), (name,), (default,)))


def is_gone(one: ref[Any]) -> bool:
    """Whether the object no longer exists; it is not held either."""
    return next(map(is_, starmap(one, _NO_ARGUMENTS), (None,)))


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


_meshes: dict[tuple[object, ...], ref[Any]] = {}
"""The references have no callback: one would run inside the collector."""


def note_mesh(mesh: Any) -> None:
    """A DeviceMesh was made, perhaps before this process is a rank.

    Only one of several slices with the same dimensions is kept, because a program may make
    thousands.
    """
    if len(_meshes) >= MESHES_MAX:
        for key, known in _meshes.copy().items():
            if known() is None:
                _meshes.pop(key, None)
    root = getattr(mesh, "_root_mesh", None)
    _meshes[mesh.mesh_dim_names, id(mesh if root is None else root)] = ref(mesh)


def meshes() -> list[Any]:
    """The DeviceMesh objects that still exist, in the order in which they were made."""
    return [mesh for one in list(_meshes.values()) if (mesh := one()) is not None]
