"""Wrappers around process groups, DeviceMesh, DDP and pipeline stages."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, cast

from ddtop.agent import claim, current
from ddtop.agent.guard import guard, suppressed
from ddtop.agent.notes import GradientNotes, GroupNotes, note_mesh
from ddtop.agent.plain import peek, text, whole
from ddtop.agent.probes.calls import CallNotes
from ddtop.agent.probes.groups import numbers_of, store_at
from ddtop.agent.probes.replicas import ReplicaNotes, parameters_of
from ddtop.agent.wrapper import replace, replace_if_there
from ddtop.redaction import redact
from ddtop.wire.names import MAKES_BY_HAND, NEW_GROUP, OF_MEMBERS_ONLY, SPLIT_GROUP
from ddtop.wire.page import CALLS, NO_PEER
from ddtop.wire.records import Group, GroupMade, Place, pack

if TYPE_CHECKING:
    from ddtop.agent.rank import Rank

# -- Wrappers around init_process_group, new_group, split_group, destroy_process_group, DeviceMesh
#
# The flight recorder has none of these calls. Each is written to the state page before it runs, so
# a rank that never returns from it is seen there. A DeviceMesh is remembered after it was made: it
# says what its groups are for.


_C10D = "torch.distributed.distributed_c10d"
_Marks = list[int]
"""Tag and peer of the call on the state page."""
HELLO_S = 0.2
"""The agent of a child that has just become a rank needs 0.1 s to say its first word."""


def wrap(module: ModuleType) -> None:
    """Replace these functions in `torch.distributed.distributed_c10d`."""
    _replace(module, "init_process_group", _before_init, _after_init)
    _replace(module, NEW_GROUP, partial(_before_making, NEW_GROUP), _after_making)
    # torch 2.4 has it for the first time, and only for NCCL.
    _replace(module, SPLIT_GROUP, partial(_before_making, SPLIT_GROUP), _after_making)
    _replace(module, "destroy_process_group", _before_destroy, _after_destroy)
    _pause_while(module, "_abort_process_group")
    replace_if_there(
        module,
        MAKES_BY_HAND,
        lambda args, kwargs: guard.run("groups made", _note_by_hand, args, kwargs),
    )


def wrap_mesh(module: ModuleType) -> None:
    """Remember each mesh that `torch.distributed.device_mesh.DeviceMesh` makes."""
    kind = getattr(module, "DeviceMesh", None)
    # Without torch.distributed the class is an empty stand-in.
    if kind is None or not hasattr(kind, "mesh_dim_names"):
        return
    replace(
        kind,
        "__init__",
        lambda args, _kwargs: args[0],
        lambda mesh, _made, error: error or guard.run("device mesh", note_mesh, mesh),
    )


def _replace(
    module: ModuleType,
    name: str,
    before: Callable[[tuple[Any, ...], dict[str, Any], _Marks], None],
    after: Callable[[], None] | None,
) -> None:
    call = CALLS.index(name)

    def enter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        marks = [0, NO_PEER]
        guard.run(f"before {name}", before, args, kwargs, marks)
        return current.enter_call(call, *marks)

    def leave(slot: int, *_: object) -> None:
        current.leave_call(slot)
        if after is not None:
            guard.run(f"after {name}", after)

    replace_if_there(module, name, enter, leave)


def _pause_while(module: ModuleType, name: str) -> None:
    """Read no process group while this function runs."""

    def pause(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Rank | None:
        rank = current.get()
        if rank is not None:
            rank.pause_collectives()
        return rank

    replace_if_there(module, name, pause, lambda rank, *_: rank and rank.resume_collectives())


def _world() -> Any:
    """Torch's dictionaries of all process groups; None before torch.distributed is imported."""
    return getattr(sys.modules.get(_C10D), "_world", None)


def _before_init(args: tuple[Any, ...], kwargs: dict[str, Any], _marks: _Marks) -> None:
    names = ("backend", "init_method", "timeout", "world_size", "rank", "store")
    given = dict(zip(names, args, strict=False)) | kwargs
    from ddtop.agent import claim
    from ddtop.agent.probes import init_args

    backend = given.get("backend")
    arguments = init_args.look(given)
    claim.entering_init(
        given.get("rank", -1),
        given.get("world_size", -1),
        text(backend),
        # A store that is not a TCPStore has no address.
        arguments.method or ("store" if given.get("store") is not None else None),
    )
    rank = current.get()
    if rank is not None:
        rank.init_arguments = arguments
        if arguments.store_file is not None:
            # If its folder does not exist, torch tries to open the file for ever with the GIL held.
            rank.send_hello_now(HELLO_S)
        else:
            rank.send_hello_again()


def _after_init() -> None:
    rank = current.get()
    if rank is not None:
        rank.joined = True
        group = getattr(_world(), "default_pg", None)
        # None: the call has raised.
        if group is not None:
            rank.enters_group(group.rank(), group.size())
            rank.send_hello_again()


def _before_making(call: str, args: tuple[Any, ...], kwargs: dict[str, Any], marks: _Marks) -> None:
    # The constructor of a group writes its members into the recorder, without the GIL. The status
    # is read without the recorder's lock (FlightRecorderDetail.hpp, `getPgConfigJson`).
    rank = current.get()
    if rank is not None:
        rank.pause_recorder()
        marks[0] = OF_MEMBERS_ONLY
        given = dict(zip(_PARAMETERS[call], args, strict=False)) | kwargs
        guard.run("groups made", _note_made, rank, call, given, marks)


_PARAMETERS = {
    NEW_GROUP: [
        "ranks",
        "timeout",
        "backend",
        "pg_options",
        "use_local_synchronization",
        "group_desc",
    ],
    SPLIT_GROUP: ["parent_pg", "split_ranks", "timeout", "pg_options", "group_desc", "backend"],
}


def _note_made(rank: Rank, call: str, given: dict[str, Any], marks: _Marks) -> None:
    world, parent = _world(), given.get("parent_pg")
    default, notes = world.default_pg, rank.notes[GroupNotes]
    local, splits = bool(given.get("use_local_synchronization")), call == SPLIT_GROUP
    # If another group is split, its members come.
    if default is None or (parent is not None and parent is not default):
        return
    asked: Any = given.get("ranks")
    if splits:
        parts: Any = given.get("split_ranks")
        parts = parts if type(parts) in (list, tuple) else ()
        asked = [member for part in parts if type(part) in (list, tuple) for member in part]
    elif asked is None:
        asked = range(default.size())
    # Do not read a generator: torch must get it unused.
    if type(asked) not in (list, tuple, range, set, frozenset):
        return
    members = [number for one in asked if (number := whole(one)) is not None]
    # A rank outside the local group does not wait here.
    if local and default.rank() not in members:
        return
    ranks = tuple(members if splits else sorted(members))
    backend = (text(given.get("backend")) or str(world.pg_map[default][0])).lower()
    # Torch before 2.1 lets all ranks wait for each other. Later NCCL does, if the ranks have named
    # their GPUs: then it splits the group of all ranks.
    every = splits or (
        not local
        and (
            getattr(sys.modules[_C10D], "_is_barrier_after_init", lambda: 1)() == 1
            or getattr(default, "bound_device_id", None) is not None
            or backend == "mpi"
        )
    )
    notes.splits += splits
    number = notes.splits if splits else len(world.pg_names) if local else world.group_count
    marks[:] = 0 if every else OF_MEMBERS_ONLY, number
    group = Group(str(number), redact(text(given.get("group_desc")) or ""), ranks, backend)
    notes.made.append(
        GroupMade(call, number, rank.times_destroyed, pack(group), local, _called_from(rank))
    )


def _note_by_hand(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    names = ("group_size", "group_rank", "global_ranks_in_group", "backend", "store", "group_name")
    given, rank = dict(zip(names, args, strict=False)) | kwargs, current.get()
    # Torch calls it too: with members for its own groups, and without them for the default group.
    if rank is None or given.get("global_ranks_in_group") or _world().default_pg is None:
        return
    group = Group(
        redact(text(given.get("group_name")) or ""),
        "",
        (),
        (text(given.get("backend")) or "").lower(),
        foreign=store_at(given.get("store")),
        size=whole(given["group_size"]) or 0,
        number=whole(given["group_rank"]) or 0,
    )
    made = GroupMade(MAKES_BY_HAND, 0, rank.times_destroyed, group, True, _called_from(rank))
    rank.notes[GroupNotes].made.append(made)


def _called_from(rank: Rank) -> Place | None:
    """The line of the program that makes the group, and the function of a library that it calls."""
    callee, frame = None, cast("FrameType | None", sys._getframe(1))
    while frame is not None and not rank.frames.is_user(frame.f_code.co_filename):
        if not (text(frame.f_globals.get("__name__")) or "").startswith("ddtop."):
            callee = frame.f_code.co_name
        frame = frame.f_back
    code = frame.f_code if frame is not None else None
    return frame and code and Place(code.co_name, code.co_filename, frame.f_lineno, callee=callee)


def _after_making() -> None:
    rank = current.get()
    if rank is not None:
        rank.resume_recorder()


def _before_destroy(args: tuple[Any, ...], kwargs: dict[str, Any], _marks: _Marks) -> None:
    rank = current.get()
    if rank is None:
        return
    whole = not args and kwargs.get("group") is None
    # The agent must not hold the last reference to a group: its destructor would run in the agent's
    # thread.
    rank.pause_collectives()
    group = args[0] if args else kwargs.get("group")
    rank.notes[CallNotes].forget(None if whole else getattr(_world(), "pg_names", {}).get(group))
    if whole:
        rank.final_seqs = _sequence_numbers()
        rank.destroyed = True
        rank.times_destroyed += 1
        rank.leaves_group()
        rank.send_hello_again()


def _sequence_numbers() -> dict[str, int]:
    """How far this rank has come in each of its groups; what cannot be read is left out."""
    found = {}
    for group, name in getattr(_world(), "pg_names", {}).copy().items():
        # A backend may count otherwise.
        with suppressed:
            numbers = numbers_of(str(name), group)
            found.update({track: number for track, number in numbers.items() if number is not None})
    return found


def _after_destroy() -> None:
    rank = current.get()
    if rank is not None:
        rank.resume_collectives()


# -- Notes in which group DistributedDataParallel averages gradients
#
# Its members should read different data, and those on GPUs should use NCCL.


def wrap_ddp(module: ModuleType) -> None:
    """Note the group after `DistributedDataParallel.__init__`; subclasses come through it too."""
    replace(
        module.DistributedDataParallel,
        "__init__",
        lambda args, _kwargs: args[0],
        lambda model, _made, error: error or guard.run("data parallel", _note_ddp, model),
    )


def _note_ddp(model: Any) -> None:
    rank = current.get()
    world = _world()
    group = peek(model, "process_group")
    if rank is not None and world is not None and group is not None:
        name = world.pg_names.get(group)
        notes: GradientNotes = rank.notes[GradientNotes]
        notes.group = str(name) if name is not None else None
        if name is not None:
            rank.notes[ReplicaNotes].add(model, str(name))
        notes.gloo_bytes = _through_gloo(model, group, world)


def _through_gloo(model: Any, group: Any, world: Any) -> int | None:
    """Bytes of the parameters on a GPU whose gradients go through gloo although this torch has
    NCCL.

    Read once per model, without a GPU call.
    """
    if peek(model, "device_type") != "cuda":
        return None
    pairs = str(world.pg_backend_config.get(group, "")).split(",")
    if "cuda:gloo" not in pairs or not sys.modules["torch.distributed"].is_nccl_available():
        return None
    return int(
        sum(
            parameter.numel() * parameter.element_size()
            for _, parameter in parameters_of(model, sys.modules["torch"])
            if parameter.requires_grad
        )
    )


# -- A wrapper around the constructor of torch's pipeline stages: it remembers each stage once
#
# Nothing is wrapped that runs in a step. The probe reads what the stages keep for themselves.


def wrap_pipelining(module: ModuleType) -> None:
    """Wrap the constructor in `torch.distributed.pipelining.stage`."""
    kind = getattr(module, "_PipelineStageBase", None)
    if kind is not None:
        replace(
            kind,
            "__init__",
            lambda args, _kwargs: args[0],
            lambda stage, _made, error: error or guard.run("pipeline stages", _note, stage),
        )


def _note(stage: Any) -> None:
    from ddtop.agent.probes.parallel import PipelineProbe

    rank = current.get()
    if rank is None:
        return
    probe = rank.late_probes.get("pipeline")
    if not isinstance(probe, PipelineProbe):
        probe = rank.late_probes["pipeline"] = PipelineProbe(rank)
    probe.add(stage)


# -- Makes a process that calls init_rpc a rank: ranks of mp.spawn have no launcher's variables,
#    and those that use only torch.distributed.rpc never make a process group


def wrap_rpc(module: ModuleType) -> None:
    """Look at the arguments of `torch.distributed.rpc.init_rpc`; without RPC there is none."""
    replace_if_there(
        module, "init_rpc", lambda args, kwargs: guard.run("rpc", _enter, args, kwargs)
    )


def _enter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    names = ("name", "backend", "rank", "world_size", "rpc_backend_options")
    given = dict(zip(names, args, strict=False)) | kwargs
    if current.get() is None:
        method = text(getattr(given.get("rpc_backend_options"), "init_method", None))
        claim.entering_init(given.get("rank", -1), given.get("world_size"), None, method)
