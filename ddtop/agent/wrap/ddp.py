"""Notes in which group DistributedDataParallel averages gradients.

Its members should read different data, and those on GPUs should use NCCL.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from ddtop.agent import current
from ddtop.agent.guard import guard
from ddtop.agent.notes import GradientNotes
from ddtop.agent.wrapper import replace


def wrap(module: ModuleType) -> None:
    """Note the group after `DistributedDataParallel.__init__`; subclasses come through it too."""
    replace(
        module.DistributedDataParallel,
        "__init__",
        lambda args, _kwargs: args[0],
        lambda model, _made, error: error or guard.run("data parallel", _note, model),
    )


def _note(model: Any) -> None:
    rank = current.get()
    world = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    group = getattr(model, "process_group", None)
    if rank is not None and world is not None and group is not None:
        name = world.pg_names.get(group)
        notes: GradientNotes = rank.notes[GradientNotes]
        notes.group = str(name) if name is not None else None
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
            one.numel() * one.element_size()
            for one in model.module.parameters()
            if one.requires_grad
        )
    )
