"""Wrappers around process groups, DeviceMesh, DDP and pipeline stages."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ddtop.agent import claim, current
from ddtop.agent.guard import guard
from ddtop.agent.notes import GradientNotes, note_mesh
from ddtop.agent.probes.calls import CallNotes
from ddtop.agent.probes.groups import numbers_of
from ddtop.agent.probes.replicas import ReplicaNotes
from ddtop.agent.wrapper import replace
from ddtop.wire.names import OF_MEMBERS_ONLY
from ddtop.wire.page import CALLS

if TYPE_CHECKING:
    from ddtop.agent.rank import Rank

# -- Wrappers around init_process_group, new_group, split_group, destroy_process_group, DeviceMesh
#
# The flight recorder has none of these calls. Each is written to the state page before it runs, so
# a rank that never returns from it is seen there. A DeviceMesh is remembered after it was made: it
# says what its groups are for.


HELLO_S = 0.2
"""The agent of a child that has just become a rank needs 0.1 s to say its first word."""


def wrap(module: ModuleType) -> None:
    """Replace these functions in `torch.distributed.distributed_c10d`."""
    _replace(module, "init_process_group", _before_init, _after_init)
    _replace(module, "new_group", _before_making, _after_making)
    # torch 2.4 has it for the first time, and only for NCCL.
    _replace(module, "split_group", _before_making, _after_making, _splits_a_part)
    _replace(module, "destroy_process_group", _before_destroy, _after_destroy)
    _pause_while(module, "_abort_process_group")


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
    before: Callable[[tuple[Any, ...], dict[str, Any]], None] | None,
    after: Callable[[], None] | None,
    is_local: Callable[[tuple[Any, ...], dict[str, Any]], bool] | None = None,
) -> None:
    if not hasattr(module, name):
        return
    is_local = is_local or _is_local
    call = CALLS.index(name)

    def enter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        if before is not None:
            guard.run(f"before {name}", before, args, kwargs)
        return current.enter_call(call, OF_MEMBERS_ONLY if is_local(args, kwargs) else 0)

    def leave(slot: int, *_: object) -> None:
        current.leave_call(slot)
        if after is not None:
            guard.run(f"after {name}", after)

    replace(module, name, enter, leave)


def _pause_while(module: ModuleType, name: str) -> None:
    """Read no process group while this function runs."""
    if not hasattr(module, name):
        return

    def pause(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Rank | None:
        rank = current.get()
        if rank is not None:
            rank.pause_collectives()
        return rank

    replace(module, name, pause, lambda rank, *_: rank and rank.resume_collectives())


def _is_local(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """A new_group for which only its members have to come."""
    return bool(kwargs.get("use_local_synchronization") or args[4:5] == (True,))


def _splits_a_part(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """A split_group of a group that is not that of all ranks: the members of that group come."""
    parent = args[0] if args else kwargs.get("parent_pg")
    return parent is not None and parent is not getattr(_world(), "default_pg", None)


def _world() -> Any:
    """Torch's dictionaries of all process groups; None before torch.distributed is imported."""
    return getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)


def _before_init(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    names = ("backend", "init_method", "timeout", "world_size", "rank", "store")
    given = dict(zip(names, args, strict=False)) | kwargs
    from ddtop.agent import claim
    from ddtop.agent.probes import init_args

    backend = given.get("backend")
    arguments = init_args.look(given)
    claim.entering_init(
        given.get("rank", -1),
        given.get("world_size", -1),
        str(backend) if backend else None,
        # A store that is no TCPStore has no address.
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


def _before_making(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    # The constructor of a group writes its members into the recorder, without the GIL. The status
    # is read without the recorder's lock (FlightRecorderDetail.hpp, `getPgConfigJson`).
    rank = current.get()
    if rank is not None:
        rank.pause_recorder()


def _after_making() -> None:
    rank = current.get()
    if rank is not None:
        rank.resume_recorder()


def _before_destroy(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    rank = current.get()
    if rank is None:
        return
    whole = not args and kwargs.get("group") is None
    # The agent must not hold the last reference to a group: its destructor would run in the agent's
    # thread.
    rank.pause_collectives()
    rank.notes[CallNotes].by_id.clear()
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
        try:
            numbers = numbers_of(str(name), group)
        except Exception:  # noqa: BLE001 - a backend that counts otherwise
            continue
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
    world = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    group = getattr(model, "process_group", None)
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
    if getattr(model, "device_type", None) != "cuda":
        return None
    pairs = str(world.pg_backend_config.get(group, "")).split(",")
    if "cuda:gloo" not in pairs or not sys.modules["torch.distributed"].is_nccl_available():
        return None
    return int(
        sum(
            parameter.numel() * parameter.element_size()
            for parameter in model.module.parameters()
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
    if hasattr(module, "init_rpc"):
        replace(module, "init_rpc", lambda args, kwargs: guard.run("rpc", _enter, args, kwargs))


def _enter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    names = ("name", "backend", "rank", "world_size", "rpc_backend_options")
    given = dict(zip(names, args, strict=False)) | kwargs
    if current.get() is None:
        method = getattr(given.get("rpc_backend_options"), "init_method", None)
        claim.entering_init(given.get("rank", -1), given.get("world_size"), None, method)
