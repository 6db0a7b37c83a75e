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

    # As in the hook of the optimizer: what a call would have to look up each time.
    noted: tuple[Any, ...] = (None,)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        nonlocal noted
        rank = current._rank
        if rank is not None and PART not in guard.off:
            try:
                if noted[0] is not rank:
                    noted = (
                        *(rank, rank.page.words, rank.notes[CallNotes]),
                        *(module.torch.Tensor, module.torch.nn.Parameter),
                        module.torch._C._len_torch_function_stack,
                        module.torch._C._len_torch_dispatch_stack,
                    )
                _, words, notes, plain, parameter, functions, dispatches = noted
                group = args[group_at] if len(args) > group_at else kwargs.get("group")
                order = notes.by_id.get(id(group)) or _begin(rank, notes, module._world, group)
                way = notes.note(order, name, _frame(1)) if order is not None else None
                if order is not None and way is not None:
                    tensor = args[tensor_at] if len(args) > tensor_at else kwargs.get(tensor_name)
                    kind, slot = type(tensor), 1 - notes.slot
                    notes.slot, at = slot, LAST_CALLS[slot]
                    words[at + MADE] = order.made
                    # As `may_be_asked`.
                    if (kind is not plain and kind is not parameter) or functions() or dispatches():
                        tensor = None
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


def note_step(rank: Rank, notes: CallNotes, step: int) -> None:
    """The optimizer has made this step: how many calls has the rank made since the last one?

    A step like the last one touches as little as it can: nothing of it is in the caches of the CPU
    after a long step.
    """
    stepping = notes.stepping or _begin_steps(rank, notes)
    if stepping is None:
        return
    group_of, order = stepping
    group = group_of()
    try:
        total = group._get_sequence_number_for_group()
    except (RuntimeError, AttributeError):
        total = number_of(group) or 0
    calls, order.total = total - order.total, total
    way = order.last
    if way is not None and way.next is way and way.calls == calls and not order.open:
        # The stack may be smaller than at the last step.
        try:
            frame = _frame(order.depth)
            above = frame.f_back
            if (
                frame.f_code is way.code
                and frame.f_lasti == way.at
                and way.above == (above and above.f_lasti)
            ):
                order.made += 1
                return
        except ValueError:
            pass
    way = order.way(STEP, notes.users(_frame(2)), calls)
    order.depth = 2 + notes.passed
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
