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
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import ref

from ddtop.agent import current
from ddtop.agent.guard import suppressed
from ddtop.agent.notes import PeerNotes
from ddtop.agent.plain import whole
from ddtop.agent.probes.groups import foreign_store, numbers_of
from ddtop.agent.tracebacks import without_ours
from ddtop.wire.names import OF_MEMBERS_ONLY
from ddtop.wire.page import CALLS, NO_PEER

if TYPE_CHECKING:
    from ddtop.agent.limits import AgentLimits

_WRAPPED = "__ddtop_wrapped__"
_SIDES = {"send": "dst", "isend": "dst", "recv": "src", "irecv": "src"}
_MARKS_MAX = 4096

_marks: dict[int, tuple[ref[Any], tuple[int, int, int]]] = {}
"""id of a Work that isend or irecv returned -> the Work, to tell it from another one that got its
address, and (call, peer, tag). The reference has no callback: one would run inside the collector.
"""


def wrap(module: ModuleType) -> None:
    """Replace the functions in `torch.distributed.distributed_c10d`, and the wait of its Work."""
    for name, side in _SIDES.items():
        _wrap_side(module, name, side)
    _wrap_barrier(module)
    _wrap_wait(module)


def _wrap_side(module: ModuleType, name: str, side: str) -> None:
    original = getattr(module, name, None)
    if original is None or hasattr(original, _WRAPPED):
        return
    call, blocks = CALLS.index(name), not name.startswith("i")

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        rank = current.get()
        if rank is None:
            with without_ours:
                return original(*args, **kwargs)
        notes: PeerNotes = rank.notes[PeerNotes]
        peer, tag = _peer_and_tag(module, side, args, kwargs)
        group = args[2] if len(args) > 2 else kwargs.get("group")
        if _note_call(notes, module, group):
            peer = NO_PEER
        if not blocks:
            with without_ours, _Counted(notes, module, group):
                work = original(*args, **kwargs)
            _remember(work, call, peer, tag)
            return work
        began = time.monotonic_ns()
        slot = rank.page.enter_call(call, peer, tag)
        try:
            with without_ours:
                return original(*args, **kwargs)
        finally:
            rank.page.leave_call(slot)
            _note_wait(notes, began, rank.limits)

    setattr(wrapper, _WRAPPED, True)
    setattr(module, name, wrapper)


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

    def _numbers(self) -> dict[str, int]:
        return {
            name: number
            for name, number in numbers_of(self._name, self._group).items()
            if number is not None
        }

    def __enter__(self) -> None:
        if self._whole:
            self._notes.bases.update(self._before)

    def __exit__(self, *_: object) -> None:
        for name in self._before:
            self._notes.bases.pop(name, None)
        with suppressed:  # as above
            for name, number in self._numbers().items():
                counts, grown = self._notes.counts, number - self._before.get(name, number)
                if grown > 0:
                    # Another thread's collective may fall into it: a call that has one peer never
                    # counts more than one.
                    counts[name] = counts.get(name, 0) + (grown if self._whole else 1)


def _note_wait(notes: PeerNotes, began: int, limits: AgentLimits) -> None:
    # Stages of a pipeline wait by design: what was borne before is no news.
    waited = time.monotonic_ns() - began
    if waited > limits.wait_kept_ns:
        notes.waits.append(waited)


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


def _wrap_barrier(module: ModuleType) -> None:
    original = getattr(module, "monitored_barrier", None)
    if original is None or hasattr(original, _WRAPPED):
        return
    call = CALLS.index("monitored_barrier")

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        rank = current.get()
        if rank is None:
            with without_ours:
                return original(*args, **kwargs)
        notes, group = rank.notes[PeerNotes], args[0] if args else kwargs.get("group")
        foreign = foreign_store(getattr(module, "_world", None), group) is not None
        slot = rank.page.enter_call(call, NO_PEER, OF_MEMBERS_ONLY if foreign else 0)
        try:
            with without_ours, _Counted(notes, module, group, whole=True):
                return original(*args, **kwargs)
        finally:
            rank.page.leave_call(slot)

    setattr(wrapper, _WRAPPED, True)
    module.monitored_barrier = wrapper  # type: ignore[attr-defined]


def _wrap_wait(module: ModuleType) -> None:
    work = getattr(module, "Work", None)
    original: Callable[..., Any] | None = getattr(work, "wait", None)
    if work is None or original is None or hasattr(original, _WRAPPED):
        return

    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        mark = _marks.get(id(self))
        rank = current.get() if mark is not None else None
        if mark is None or rank is None or mark[0]() is not self:
            with without_ours:
                return original(self, *args, **kwargs)
        notes: PeerNotes = rank.notes[PeerNotes]
        began = time.monotonic_ns()
        slot = rank.page.enter_call(*mark[1])
        try:
            with without_ours:
                return original(self, *args, **kwargs)
        finally:
            rank.page.leave_call(slot)
            _note_wait(notes, began, rank.limits)

    functools.update_wrapper(wait, original)
    setattr(wait, _WRAPPED, True)
    work.wait = wait
