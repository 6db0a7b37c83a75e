"""Cards and their holders as they stand in a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddtop.diagnosis.words import rank_range
from ddtop.model.devices import Device, by_environment
from ddtop.model.facts import RankFacts, Snapshot
from ddtop.model.policy import Policy
from ddtop.wire.gpu import Gpu, GpuProcess


def size(value: int | None) -> str:
    """`31.0 GiB`."""
    if value is None:
        return "?"
    return f"{value / 2**30:.1f} GiB" if value >= 1 << 30 else f"{value / 2**20:.0f} MiB"


def card_text(device: Device) -> str:
    """`GPU 3 of node0`."""
    return f"{'a MIG instance of ' if device.gpu.parent else ''}GPU {device.gpu.index} of {device.host}"


def holder_text(one: GpuProcess) -> str:
    """`pid 3310 (bob, python sample.py, 31.0 GiB)`."""
    parts = [one.user, one.command, size(one.used_bytes) if one.used_bytes is not None else None]
    known = ", ".join(part for part in parts if part)
    orphan = ", its parent has ended" if one.orphan and known else ""
    return f"pid {one.pid} ({known}{orphan})" if known else f"pid {one.pid}"


def holders_text(processes: Sequence[GpuProcess], most: int = 3) -> str:
    """The largest first, the others counted."""
    ordered = sorted(processes, key=lambda one: -(one.used_bytes or 0))
    text = ", ".join(holder_text(one) for one in ordered[:most])
    return f"{text} and {len(ordered) - most} more" if len(ordered) > most else text


def device_of(rank: RankFacts, snapshot: Snapshot) -> Device | None:
    """The rank's card, a guess from its environment where nothing better is known."""
    devices = [one for one in snapshot.devices if one.host == rank.host]
    if not devices or rank.hello is None:
        return None
    gpu = rank.own.gpu if rank.own is not None else by_environment(rank.hello, [one.gpu for one in devices])
    return next((one for one in devices if gpu is not None and one.gpu.uuid == gpu.uuid), None)


def ranks_on(device: Device, snapshot: Snapshot) -> tuple[int, ...]:
    """The ranks whose own card it is; one that only has a context on it is none of them."""
    found = []
    for number in device.ranks:
        own = snapshot.rank(number).own
        if own is None or own.gpu.uuid == device.gpu.uuid:
            found.append(number)
    return tuple(found)


def strangers(device: Device, policy: Policy) -> tuple[GpuProcess, ...]:
    """Processes of others that hold a part of the card that counts: a display server's or a notebook's context does not."""
    least = policy.gpu_foreign_ratio * (device.gpu.total_bytes or 0)
    return tuple(one for one in device.foreign if one.used_bytes is not None and one.used_bytes >= least > 0)


def free_cards(host: str | None, snapshot: Snapshot, policy: Policy) -> tuple[Gpu, ...]:
    """Cards of that host on which nobody is."""
    return tuple(one.gpu for one in snapshot.devices if one.host == host and _is_free(one, policy))


def _is_free(device: Device, policy: Policy) -> bool:
    gpu = device.gpu
    if device.ranks or gpu.lost or gpu.mig or gpu.used_bytes is None or not gpu.total_bytes:
        return False
    return gpu.used_bytes <= policy.gpu_foreign_ratio * gpu.total_bytes and not (gpu.exclusive and gpu.processes)


def free_text(cards: Iterable[Gpu]) -> str:
    """`GPUs 5,6 are free`, or that none is."""
    numbers = sorted({gpu.index for gpu in cards})
    if not numbers:
        return "no GPU of that host is free"
    return f"GPU {numbers[0]} is free" if len(numbers) == 1 else f"GPUs {rank_range(numbers)} are free"
