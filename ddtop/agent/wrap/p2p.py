"""Wrappers around send, recv and their like, and monitored_barrier.

Gloo's flight recorder has none of these calls. A wrapper writes peer and tag to the state page
before the call runs. What isend and irecv return is remembered until the program waits for it: then
that wait is on the page. The functions are replaced before user code can bind the names, so that
`P2POp(dist.isend, ...)` and torch's pipelines, which compare functions by identity, meet one object
everywhere.
"""

from __future__ import annotations

import contextlib
import functools
import time
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import ref

from ddtop.agent import current
from ddtop.agent.guard import suppressed
from ddtop.agent.notes import PeerNotes
from ddtop.agent.plain import whole
from ddtop.agent.probes.groups import foreign_store, numbers_of
from ddtop.agent.wrapper import replace_if_there
from ddtop.wire.names import OF_MEMBERS_ONLY
from ddtop.wire.page import CALLS, NO_PEER

if TYPE_CHECKING:
    from ddtop.agent.rank import Rank

_SIDES = {"send": "dst", "isend": "dst", "recv": "src", "irecv": "src"}
_MARKS_MAX = 4096

_marks: dict[int, tuple[ref[Any], tuple[int, int, int]]] = {}
"""id of a Work that isend or irecv returned -> the Work, to tell it from another one that got its
address, and (call, peer, tag). The reference has no callback: one would run inside the collector.
"""


def wrap(module: ModuleType) -> None:
    """Replace the functions in `torch.distributed.distributed_c10d`, and the wait of its Work."""
    for name, side in _SIDES.items():
        call = functools.partial(_call, module, CALLS.index(name), side)
        if name.startswith("i"):
            before = functools.partial(_enter_started, module, call)
            replace_if_there(module, name, before, _started)
        else:
            replace_if_there(module, name, functools.partial(_enter, call), _leave)
    begin = functools.partial(_enter_barrier, module)
    replace_if_there(module, "monitored_barrier", begin, _leave_barrier)
    work = getattr(module, "Work", None)
    replace_if_there(work, "wait", functools.partial(_enter, _awaited), _leave)


def _enter(
    call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Rank, int, int] | None:
    """A call that waits: this rank, the slot of the call on its page, since when. None: no rank, or
    `call` finds nothing in the arguments."""
    rank = current.get()
    found = call(rank, args, kwargs) if rank is not None else None
    if rank is None or found is None:
        return None
    began = time.monotonic_ns()
    return rank, rank.page.enter_call(*found), began


def _leave(noted: tuple[Rank, int, int] | None, _made: Any, _error: BaseException | None) -> None:
    if noted is not None:
        rank, slot, began = noted
        rank.page.leave_call(slot)
        # Stages of a pipeline wait by design: what was borne before is not news.
        waited = time.monotonic_ns() - began
        if waited > rank.limits.wait_kept_ns:
            rank.notes[PeerNotes].waits.append(waited)


def _call(
    module: ModuleType, call: int, side: str, rank: Rank, args: Any, kwargs: Any
) -> tuple[int, int, int]:
    """Number, peer and tag of a call."""
    peer, tag = _peer_and_tag(module, side, args, kwargs)
    group = args[2] if len(args) > 2 else kwargs.get("group")
    return call, NO_PEER if _note_call(rank.notes[PeerNotes], module, group) else peer, tag


def _enter_started(
    module: ModuleType, call: Any, args: Any, kwargs: Any
) -> tuple[_Counted, tuple[int, int, int]] | None:
    rank = current.get()
    if rank is None:
        return None
    found = call(rank, args, kwargs)
    group = args[2] if len(args) > 2 else kwargs.get("group")
    return _Counted(rank.notes[PeerNotes], module, group), found


def _started(noted: Any, work: Any, error: BaseException | None) -> None:
    if noted is not None:
        counted, found = noted
        counted.end()
        if error is None:
            _remember(work, *found)


def _awaited(_rank: Rank, args: Any, _kwargs: Any) -> tuple[int, int, int] | None:
    """What the Work stands for, if isend or irecv returned it."""
    mark = _marks.get(id(args[0]))
    return mark[1] if mark is not None and mark[0]() is args[0] else None


def _enter_barrier(module: ModuleType, args: Any, kwargs: Any) -> tuple[Rank, int, _Counted] | None:
    rank = current.get()
    if rank is None:
        return None
    group = args[0] if args else kwargs.get("group")
    foreign = foreign_store(getattr(module, "_world", None), group) is not None
    number = CALLS.index("monitored_barrier")
    slot = rank.page.enter_call(number, NO_PEER, OF_MEMBERS_ONLY if foreign else 0)
    return rank, slot, _Counted(rank.notes[PeerNotes], module, group, whole=True)


def _leave_barrier(noted: Any, _made: Any, _error: BaseException | None) -> None:
    if noted is not None:
        rank, slot, counted = noted
        counted.end()
        rank.page.leave_call(slot)


def _note_call(notes: PeerNotes, module: ModuleType, group: Any) -> bool:
    """Count the call, and ask torch once for each group whether its peers are ranks of this job."""
    # Torch without these, or a group that torch will refuse.
    with suppressed:
        world = module._world
        group = world.default_pg if group is None else group
        name = str(world.pg_names[group])
        notes.calls[name] = notes.calls.get(name, 0) + 1
        if name not in notes.foreign:
            notes.foreign[name] = foreign_store(world, group) is not None
        return notes.foreign[name]
    return False


class _Counted:
    """Notes by how much a call advances the sequence number of its group; never makes the call
    fail.
    """

    def __init__(
        self, notes: PeerNotes, module: ModuleType, group: Any, whole: bool = False
    ) -> None:
        self._notes = notes
        self._name, self._group, self._whole = "", group, whole
        self._before: dict[str, int] = {}
        # Torch without these names, or a group that torch will refuse.
        with suppressed:
            world = module._world
            self._group = world.default_pg if group is None else group
            self._name = str(world.pg_names[self._group])
            self._before = self._numbers()
        if whole:
            notes.bases.update(self._before)

    def _numbers(self) -> dict[str, int]:
        return {
            name: number
            for name, number in numbers_of(self._name, self._group).items()
            if number is not None
        }

    def end(self) -> None:
        """The call has returned, or raised."""
        for name in self._before:
            self._notes.bases.pop(name, None)
        with suppressed:  # as above
            for name, number in self._numbers().items():
                counts, grown = self._notes.counts, number - self._before.get(name, number)
                if grown > 0:
                    # Another thread's collective may fall into it: a call that has one peer never
                    # counts more than one.
                    counts[name] = counts.get(name, 0) + (grown if self._whole else 1)


def _peer_and_tag(
    module: ModuleType, side: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[int, int]:
    # (tensor, dst, group, tag, group_dst). A peer within a group is translated, so that ranks can
    # be compared.
    peer = args[1] if len(args) > 1 else kwargs.get(side)
    tag = args[3] if len(args) > 3 else kwargs.get("tag", 0)
    if peer is None:
        inside = args[4] if len(args) > 4 else kwargs.get(f"group_{side}")
        group = args[2] if len(args) > 2 else kwargs.get("group")
        if inside is not None:
            # A call that torch will refuse is torch's to refuse.
            with suppressed:
                peer = inside if group is None else module.get_global_rank(group, inside)
    peer, tag = whole(peer), whole(tag)
    return NO_PEER if peer is None else peer, tag or 0


def _remember(work: Any, call: int, peer: int, tag: int) -> None:
    if work is None:
        return
    if len(_marks) >= _MARKS_MAX:
        # A copy, and `pop` with a default: other threads add and remove marks at the same time.
        for key, (reference, _) in _marks.copy().items():
            if reference() is None:
                _marks.pop(key, None)
        if len(_marks) >= _MARKS_MAX:
            return
    with contextlib.suppress(TypeError):
        _marks[id(work)] = (ref(work), (call, peer, tag))
