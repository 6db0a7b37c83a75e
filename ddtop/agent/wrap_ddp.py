"""In which group DistributedDataParallel averages gradients: its members should read different data."""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

from ddtop.agent import runtime

_WRAPPED = "__ddtop_wrapped__"


def wrap(module: ModuleType) -> None:
    """Note the group after `DistributedDataParallel.__init__`; subclasses come through it too."""
    cls: Any = module.DistributedDataParallel
    original = cls.__init__
    if hasattr(original, _WRAPPED):
        return

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - the method's own name
        original(self, *args, **kwargs)
        runtime.guarded("data parallel", lambda: _note(self))

    setattr(__init__, _WRAPPED, True)
    cls.__init__ = __init__


def _note(model: Any) -> None:
    running = runtime.current()
    world = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    group = getattr(model, "process_group", None)
    if running is not None and world is not None and group is not None:
        name = world.pg_names.get(group)
        running.averages_in = str(name) if name is not None else None
