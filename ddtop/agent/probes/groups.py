"""What this rank knows about one process group, or about one backend in it. Clocks are monotonic
ns.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ddtop.redaction import redact
from ddtop.wire.records import BESIDE, Collective, Group, is_loopback, pack

RETIRED_KEPT = 8
"""Retired entries kept per group. With gloo one side of a mismatch completes, and its entry is the
evidence.
"""
DONE = ("retired", "completed")


@dataclass
class GroupWatch:
    """What is known about the group. `last`: the last status, if it mixes collectives with calls
    for single ranks, else None. `came_at`: when something completed last.

    `status`: gloo's last status, (enqueued, completed). `proven`: (status, completed) according to
    the entries while the status was the same. `doubted`: the status at which the entries showed an
    open collective that the status does not show.

    `uncounted`: calls that count in the sequence number but never in the status, such as those
    captured into a CUDA graph. `connecting`: the thread is inside a call that counts in the number
    but not yet in the status.
    """

    enqueued: int = 0
    completed: int | None = None
    offset: int | None = None
    last_op: str | None = None
    moved_at: int = 0
    pending_since: int | None = None
    used: bool = False
    error: str | None = None
    building: bool = False
    last: tuple[int, int] | None = None
    came_at: int = 0
    status: tuple[int, int] | None = None
    proven: tuple[tuple[int, int], int] | None = None
    doubted: tuple[int, int] | None = None
    uncounted: int = 0
    connecting: bool = False
    open: list[Collective] = field(default_factory=list)
    retired: list[Collective] = field(default_factory=list)

    def take_status(self, enqueued: int, completed: int, now: int) -> int | None:
        """Take the recorder's last enqueued and last completed number. Returns the length of the
        wait that has ended, ns; None if none has.

        Gloo's `completed` is the number of the collective that completed last. Two of its threads
        may finish two collectives in reverse order; then it stays below `enqueued` although nothing
        is open. So it counts only until the entries have been read.
        """
        waited = None
        self.status = (enqueued, completed)
        completed = self._proven_completed(enqueued, completed)
        if self.completed is None and completed <= self.enqueued:
            # A number that becomes known is not progress: until now the count was used instead.
            self.completed = completed
        elif completed != self.completed:
            if self.pending_since is not None:
                waited = now - self.pending_since
            self.completed, self.pending_since, self.moved_at, self.open = completed, None, now, []
            self.came_at = now
        self.enqueued = max(self.enqueued, enqueued)
        if enqueued > completed:
            self.pending_since = self.pending_since or now
        elif not self.connecting:
            self.pending_since, self.open = None, []
        return waited

    def follow_call(self, now: int, in_call_since: int | None, after_ns: int) -> None:
        """On NCCL: find out whether the thread is inside a call that is not in the status yet. Call
        it after `take_status`.

        The number changes first, then NCCL is called, then the status changes. NCCL may block the
        host inside any call, because a new algorithm or a new peer connects there and waits for the
        other ranks. `in_call_since`: since when the thread has been inside one such call, None if
        it is in none; after `after_ns` it counts as blocked.

        Source: ProcessGroupNCCL.cpp `collective` and `workEnqueue`; NCCL (2.22 and later) group.cc
        `asyncJobLaunch`.
        """
        if self.status is None or self.completed is None:
            return
        ahead, before = self.enqueued - self.status[0], self.connecting
        if in_call_since is None:
            self.uncounted, self.connecting = max(0, ahead), False
        else:
            began = max(self.moved_at, in_call_since)
            self.connecting = ahead > self.uncounted and now - began > after_ns
        if self.connecting:
            self.pending_since = self.pending_since or self.moved_at
        elif before and self.status[0] <= self.completed:
            self.pending_since, self.open = None, []

    def _proven_completed(self, enqueued: int, completed: int) -> int:
        """The last completed number, from the entries if they know more than this status.

        Each collective completes once, so an old status never returns: what the entries showed is
        valid as long as the status is the same.
        """
        if self.proven is None:
            return completed
        status, proven = self.proven
        if enqueued < status[0]:
            # The group was created again.
            self.proven = None
            return completed
        return proven if status == (enqueued, completed) else max(completed, min(proven, enqueued))

    def take_mixed_status(self, enqueued: int, completed: int, now: int) -> int | None:
        """The same for NCCL's status of the last call of either kind, each with the number of its
        own kind.

        If both are equal, nothing is open. If they differ, something is open, and only the entries
        say what.
        """
        waited = None
        if (enqueued, completed) != self.last:
            if self.last is not None:
                self.moved_at = now
            if self.pending_since is not None:
                waited = now - self.pending_since
            self.last, self.pending_since, self.open, self.came_at = (
                (enqueued, completed),
                None,
                [],
                now,
            )
        if enqueued == completed:
            self.completed, self.pending_since, self.open = self.enqueued, None, []
        elif self.completed is None:
            self.completed = 0
        return waited

    def take_entries(
        self, collectives: list[Collective], counts_singles: bool, unix_minus_mono: int
    ) -> None:
        """Take its collectives from the recorder, in the order in which they were made.
        `counts_singles`: their op_id shows how many calls for single ranks are counted in the
        sequence number."""
        if not counts_singles:
            collectives = _by_retirement(collectives)
        self.open = [item for item in collectives if item.state not in DONE]
        if not counts_singles:
            # Entries of calls that were captured into a CUDA graph stay scheduled for ever.
            ended = max((item.seq for item in collectives if item.state in DONE), default=0)
            self.open = [item for item in self.open if item.seq > ended]
        self.open = self.open[:RETIRED_KEPT]
        self.retired = [item for item in collectives if item.state in DONE][-RETIRED_KEPT:]
        if collectives:
            self.last_op = collectives[-1].op
        if collectives and counts_singles:
            self.offset = max(self.offset or 0, collectives[-1].op_id - collectives[-1].seq)
        created = [item.created_unix_ns for item in self.open if item.created_unix_ns]
        since = max(0, min(created) - unix_minus_mono) if created and unix_minus_mono else None
        if since is not None and not counts_singles:
            # The host enqueues its calls long before the GPU runs them.
            since = max(since, self.came_at)
        if self.last is not None and self.last[0] != self.last[1]:
            self._settle(since)
        elif counts_singles and self._fits(collectives):
            self._prove(since)
        elif since is not None and self.pending_since is not None:
            self.pending_since = min(self.pending_since, since)

    def _settle(self, since: int | None) -> None:
        """For a mixed status: decide whether the open call is a collective."""
        if not self.open:
            self.completed, self.pending_since = self.enqueued, None
            return
        self.completed = min(item.seq for item in self.open) - 1
        self.pending_since = since

    def _fits(self, collectives: list[Collective]) -> bool:
        """Whether these entries match the status. If there are none, the recorder has overwritten
        them, because they are old.
        """
        return self.status is not None and (
            not collectives or max(item.op_id for item in collectives) >= self.status[0]
        )

    def _prove(self, since: int | None) -> None:
        """For gloo: compare the status with the entries. `since`: when the oldest open collective
        was made.
        """
        assert self.status is not None
        done = enqueued = self.status[0]
        if self.open:
            if self.pending_since is None and self.doubted != self.status:
                # It may have completed between the two reads.
                self.doubted = self.status
                return
            done = min(enqueued, min(item.op_id for item in self.open) - 1)
        self.proven, self.completed, self.doubted = (self.status, done), done, None
        if done >= enqueued:
            self.pending_since = None
        elif since is not None:
            self.pending_since = (
                since if self.pending_since is None else min(self.pending_since, since)
            )


def _by_retirement(collectives: list[Collective]) -> list[Collective]:
    """NCCL's collectives. Those that are "completed" but not retired count as open.

    A call that is blocked in its launch has that state, because an event that was never recorded
    counts as reached. The watchdog retires completed calls within 0.1 s. If it retires nothing
    (TORCH_NCCL_BLOCKING_WAIT), only the state is known.

    Source: CUDAEvent.h `query`; ProcessGroupNCCL.cpp `kWatchdogThreadSleepMillis`.
    """
    retires = any(item.state == "retired" for item in collectives)
    return [
        msgspec.structs.replace(item, state="scheduled")
        if retires and item.state == "completed"
        else item
        for item in collectives
    ]


def ended_keys(names: Mapping[tuple[str, str], str]) -> set[tuple[str, str]]:
    """The keys of a status whose groups were destroyed. `names`: the group of each key.

    Torch keeps their status, and the next group of the same name has a higher number.
    """
    newest: dict[tuple[str, str], str] = {}
    for (recorder, number), name in names.items():
        newest[recorder, name] = max(newest.get((recorder, name), ""), number, key=_as_number)
    return names.keys() - {(recorder, number) for (recorder, _), number in newest.items()}


def by_order(
    status: Mapping[tuple[str, str], tuple[int, int]], used: Mapping[str, int | None]
) -> dict[tuple[str, str], str]:
    """The group of each key of NCCL's status, without its entries; empty where that is not sure.

    `used`: the sequence number of each group that NCCL has used, in the order in which torch made
    the groups; None for a group whose status also counts calls with one peer. NCCL numbers its
    groups in the same order. Do not call this after a group was destroyed: its status remains.

    Source: ProcessGroupNCCL.cpp `local_id_`. Check: `process_group` and `pg_id` of the entries in
    `torch._C._distributed_c10d._dump_nccl_trace_json`.
    """
    keys = sorted((key for key in status if key[0] == "nccl"), key=lambda key: _as_number(key[1]))
    if len(keys) != len(used):
        return {}
    found = dict(zip(keys, used, strict=True))
    for key, name in found.items():
        number = used[name]
        if number is not None and status[key][0] > number:
            return {}
    return found


def _as_number(pg_id: str) -> int:
    return int(pg_id) if pg_id.isdecimal() else -1


# -- The sequence number of a process group, for every kind of group


def numbers_of(name: str, group: Any) -> dict[str, int | None]:
    """The sequence number of the group by its name, and that of gloo if the group also has gloo
    (`cpu:gloo,cuda:nccl`).

    Each backend of a group counts for itself: object collectives go through gloo while gradients go
    through NCCL.
    """
    found = {name: number_of(group)}
    if not _is_nccl(group):
        return found
    for device in getattr(group, "_device_types", ()):
        beside = _of_device(group, device, "gloo")
        if beside is not None:
            found[name + BESIDE] = beside
    return found


def number_of(group: Any) -> int | None:
    """The group's own sequence number; None if it has none.

    A group asks its default backend, and has none where the devices were named (`cpu:gloo`) and
    some module has registered a backend of its own, as torch's FSDP does when it is imported: then
    the backends of its devices are asked.
    """
    try:
        return int(group._get_sequence_number_for_group())
    except (RuntimeError, AttributeError):
        found = [_of_device(group, device) for device in getattr(group, "_device_types", ())]
        return max((number for number in found if number is not None), default=None)


def _is_nccl(group: Any) -> bool:
    try:
        # "nccl2" is one of torch 2.14 and later.
        return str(group.name()).startswith("nccl")
    except (RuntimeError, AttributeError, TypeError):
        return False


def _of_device(group: Any, device: Any, backend: str | None = None) -> int | None:
    try:
        asked = group._get_backend(device)
        if backend is not None and asked.name() != backend:
            return None
        return int(asked._get_sequence_number_for_group())
    except (RuntimeError, AttributeError, TypeError):
        return None


# -- What torch says of one process group: its backend, its members and its error
#
# Source: `torch.distributed.distributed_c10d._world`, plain dictionaries of Python. Check: `python
# -c "import torch.distributed as d; print(d.distributed_c10d._world.pg_map)"` in the program.


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


def store_at(store: Any) -> str:
    """Where the ranks of a group meet: HOST:PORT or a path, empty where it has no address."""
    found = _meets_in(store)
    return found[2] if found is not None else ""


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
    return type(store).__name__, own, redact(address)


def describe(world: Any, name: str, group: Any, meanings: tuple[str, ...] = ()) -> Group:
    """The record of the group. `name`: torch's; with `BESIDE` at its end it is the gloo half."""
    own, foreign = name.removesuffix(BESIDE), foreign_store(world, group)
    ranks = tuple(sorted(world.pg_group_ranks.get(group, ()))) if foreign is None else ()
    met = (foreign, group.size(), group.rank()) if foreign is not None else ()
    description = redact(str(getattr(group, "group_desc", "") or ""))
    if description in ("", "undefined"):
        description = "default_pg" if group is world.default_pg else own
    text, backend = (f"{description} (gloo)", "gloo") if name != own else (description, None)
    return pack(Group(name, text, ranks, backend or _backend(world, group), (), meanings, *met))
