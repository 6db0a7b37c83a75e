"""What torch says of one process group: its backend, its members and its error.

Source: `torch.distributed.distributed_c10d._world`, plain dictionaries of Python. Check:
`python -c "import torch.distributed as d; print(d.distributed_c10d._world.pg_map)"` in the program.
"""

from __future__ import annotations

import sys
from typing import Any

from ddtop.redaction import redacted
from ddtop.wire.rank_runs import BESIDE, packed
from ddtop.wire.records import Group


def error_of(world: Any, group: Any) -> str | None:
    """What NCCL's watchdog reports of the group ("TIMEOUT", "REMOTE_ERROR"); gloo has nothing
    alike.
    """
    if "nccl" not in _backend(world, group):
        return None
    try:
        ask = getattr(group._get_backend(sys.modules["torch"].device("cuda")), "get_error", None)
        name = getattr(ask(), "name", None) if ask is not None else None
    except RuntimeError:
        # Backend.hpp, `getError`: a backend that has none raises.
        return None
    return str(name) if name not in (None, "SUCCESS") else None


def _backend(world: Any, group: Any) -> str:
    """The backend as the program asked for it, or else what torch chose.

    `cpu:gloo,cuda:nccl`; with one kind of device only `gloo`.
    """
    backend = str(world.pg_map.get(group, ("", None))[0])
    if backend in ("", "undefined"):
        backend = str(getattr(world, "pg_backend_config", {}).get(group, backend))
        if "," not in backend:
            backend = backend.rpartition(":")[2]
    return backend


def describe(world: Any, name: str, group: Any, meanings: tuple[str, ...] = ()) -> Group:
    """The record of the group. `name`: torch's; with `BESIDE` at its end it is the gloo half."""
    own = name.removesuffix(BESIDE)
    try:
        ranks = tuple(sorted(world.pg_group_ranks[group]))
    except KeyError:
        ranks = ()
    description = redacted(str(getattr(group, "group_desc", "") or ""))
    if description in ("", "undefined"):
        description = "default_pg" if group is world.default_pg else own
    if name != own:
        return packed(Group(name, f"{description} (gloo)", ranks, "gloo", (), meanings))
    return packed(Group(name, description, ranks, _backend(world, group), (), meanings))
