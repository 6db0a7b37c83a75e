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
from ddtop.wire.rendezvous import is_loopback

PATH_CHARACTERS, PREFIXES_MAX = 200, 8


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


def foreign_store(world: Any, group: Any) -> str | None:
    """Where a group meets whose members are not ranks of this job; None for a group of this job.

    A trainer and the engines that it sends weights to are often several jobs. The group between
    them is made by hand, and torch's map of it says which rank of the group is which, not which
    rank of this job. Such a group has a store of its own, or its map contradicts its size or this
    rank's number in it. The groups that torch makes meet in the store of the default group, or in a
    copy of it, which has the same address.

    Check: `torch.distributed.distributed_c10d._world.pg_map`.
    """
    try:
        default = world.default_pg
        if default is None or group is default:
            return None
        own, job = _meets_in(world.pg_map[group][1]), _meets_in(world.pg_map[default][1])
        if own is not None and job is not None and own[:2] != job[:2]:
            return own[2]
        ranks = world.pg_group_ranks[group]
        fits = len(ranks) == group.size() and ranks.get(default.rank()) == group.rank()
    except Exception:  # noqa: BLE001 - another torch, or a group that is being made or destroyed
        return None
    return None if fits or own is None else own[2]


def _meets_in(store: Any) -> tuple[str, str, str] | None:
    """(kind, address, address as it was given) of the store below all prefixes.

    The first address has one name for this host. It is empty for a kind that has no address: two
    stores of that kind are taken for one.
    """
    for _ in range(PREFIXES_MAX):
        store = getattr(store, "underlying_store", None) or store
    if store is None:
        return None
    host, port = str(getattr(store, "host", "")), getattr(store, "port", "")
    address = f"{host}:{port}" if port else str(getattr(store, "path", ""))[-PATH_CHARACTERS:]
    own = f"localhost:{port}" if is_loopback(host) else address
    return type(store).__name__, own, redacted(address)


def describe(world: Any, name: str, group: Any, meanings: tuple[str, ...] = ()) -> Group:
    """The record of the group. `name`: torch's; with `BESIDE` at its end it is the gloo half."""
    own, foreign = name.removesuffix(BESIDE), foreign_store(world, group)
    ranks = tuple(sorted(world.pg_group_ranks.get(group, ()))) if foreign is None else ()
    description = redacted(str(getattr(group, "group_desc", "") or ""))
    if description in ("", "undefined"):
        description = "default_pg" if group is world.default_pg else own
    if name != own:
        return packed(Group(name, f"{description} (gloo)", ranks, "gloo", (), meanings, foreign))
    return packed(Group(name, description, ranks, _backend(world, group), (), meanings, foreign))
