"""Makes a process that calls init_rpc a rank: ranks of mp.spawn have no launcher's variables, and
those that use only torch.distributed.rpc never make a process group.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ddtop.agent import claim, current
from ddtop.agent.guard import guard
from ddtop.agent.wrapper import replace


def wrap(module: ModuleType) -> None:
    """Look at the arguments of `torch.distributed.rpc.init_rpc`; without RPC there is none."""
    if hasattr(module, "init_rpc"):
        replace(module, "init_rpc", lambda args, kwargs: guard.run("rpc", _enter, args, kwargs))


def _enter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    names = ("name", "backend", "rank", "world_size", "rpc_backend_options")
    given = dict(zip(names, args, strict=False)) | kwargs
    if current.get() is None:
        method = getattr(given.get("rpc_backend_options"), "init_method", None)
        claim.entering_init(given.get("rank", -1), given.get("world_size"), None, method)
