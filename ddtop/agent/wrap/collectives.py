"""Notes each collective call that Python makes, and each step of the optimizer, for
`ddtop.agent.probes.calls`.

The last call is on the state page before torch gets it: gloo may abort the process inside. No frame
outlives the call.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import ref

import msgspec

from ddtop.agent import current
from ddtop.agent.guard import guard
from ddtop.agent.notes import PeerNotes
from ddtop.agent.probes.calls import PART, CallNotes, CallsMade, Way
from ddtop.agent.probes.groups import number_of
from ddtop.agent.probes.replicas import may_be_asked
from ddtop.agent.tracebacks import leave_out
from ddtop.wire.page import LAST_CALLS, MADE, NUMEL
from ddtop.wire.records import BY_STEPS, LastCall

if TYPE_CHECKING:
    from ddtop.agent.rank import Rank

# function: (place of the group, place of the tensor, its name)
_CALLS = {
    "all_reduce": (2, 0, "tensor"),
    "broadcast": (2, 0, "tensor"),
    "reduce": (3, 0, "tensor"),
    "all_gather": (2, 1, "tensor"),
    "all_gather_into_tensor": (2, 1, "input_tensor"),
    "reduce_scatter": (3, 0, "output"),
    "reduce_scatter_tensor": (3, 1, "input"),
    "all_to_all": (2, 9, ""),
    "all_to_all_single": (4, 1, "input"),
    "gather": (3, 0, "tensor"),
    "scatter": (3, 0, "tensor"),
    "barrier": (0, 9, ""),
}
_frame = sys._getframe
STEP, _WRAPPED, _UNTRACED = "step", "__ddtop_wrapped__", "_torchdynamo_disable"


def wrap(module: ModuleType) -> None:
    """Replace these functions in `torch.distributed.distributed_c10d`."""
    for name, (group_at, tensor_at, tensor_name) in _CALLS.items():
        if hasattr(module, name):
            _replace(module, name, group_at, tensor_at, tensor_name)


def _replace(
    module: ModuleType, name: str, group_at: int, tensor_at: int, tensor_name: str
) -> None:
    original = getattr(module, name)
    if hasattr(original, _WRAPPED):
        return

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        rank = current.get()
        if rank is not None and PART not in guard.off:
            try:
                group = args[group_at] if len(args) > group_at else kwargs.get("group")
                notes: CallNotes = rank.notes[CallNotes]
                order = notes.by_id.get(id(group)) or _begin(rank, notes, module._world, group)
                way = notes.note(order, name, _frame(1)) if order is not None else None
                if order is not None and way is not None:
                    tensor = args[tensor_at] if len(args) > tensor_at else kwargs.get(tensor_name)
                    slot = notes.slot = 1 - notes.slot
                    words, at = rank.page.words, LAST_CALLS[slot]
                    words[at + MADE] = order.made
                    tensor = tensor if may_be_asked(tensor, module.torch) else None
                    words[at + NUMEL] = tensor.numel() if tensor is not None else 0
                    if notes.on_page[slot] is not way:
                        _write(rank, order.group, way, tensor, at)
                        notes.on_page[slot] = way
            except BaseException as error:  # noqa: BLE001 - the job must not see it
                guard.raised(PART, error)
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            leave_out(error)
            raise

    setattr(wrapper, _WRAPPED, True)
    # torch.compile traces the program, not what is noted of it.
    setattr(wrapper, _UNTRACED, True)
    setattr(module, name, wrapper)


def _begin(rank: Rank, notes: CallNotes, world: Any, group: Any) -> CallsMade | None:
    """The order of a group at the first call in it; None if this rank is not a member."""
    found = world.default_pg if group is None else group
    name = world.pg_names.get(found)
    if name is None:
        return None
    order = notes.by_id[id(group)] = notes.of(name, lambda: _number(rank, name) + 1)
    return order


def _write(rank: Rank, group: str, way: Way, tensor: Any, at: int) -> None:
    dtype = str(tensor.dtype) if tensor is not None else None
    way.text = way.text or msgspec.json.encode(LastCall(group, way.op, dtype, way.site))
    rank.page.write_call(at, way.text)


def _number(rank: Rank, name: str) -> int:
    """How many calls all members have made in the group."""
    world = sys.modules["torch.distributed.distributed_c10d"]._world
    group = next((group for group, its in world.pg_names.copy().items() if its == name), None)
    peers: PeerNotes = rank.notes[PeerNotes]
    return (number_of(group) or 0) - peers.counts.get(name, 0)


def note_step(rank: Rank, step: int) -> None:
    """The optimizer has made this step: how many calls has the rank made since the last one?

    It looks up as little as it can: nothing of it is in the caches of the CPU after a long step.
    """
    notes: CallNotes = rank.notes[CallNotes]
    stepping = notes.stepping or _begin_steps(rank, notes)
    if stepping is None:
        return
    order = stepping[1]
    total = number_of(stepping[0]()) or 0
    calls, order.total = total - order.total, total
    way = order.way(STEP, notes.users(_frame(2)), calls)
    if way is not None and (way is not order.last or way.next is not way or order.open):
        order.follow(way, step)
    else:
        order.made += 1


def _begin_steps(rank: Rank, notes: CallNotes) -> tuple[Callable[[], Any], CallsMade] | None:
    """The default group and the order of the steps in it; None if there is no group."""
    world = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    group = getattr(world, "default_pg", None)
    if world is None or group is None:
        return None
    name = world.pg_names[group]
    order = notes.of(name + BY_STEPS, lambda: _number(rank, name))
    notes.stepping = ref(group), order
    return notes.stepping
