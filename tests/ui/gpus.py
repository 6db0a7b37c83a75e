"""Jobs on GPUs to look at."""

from __future__ import annotations

from collections.abc import Collection

from ddtop.model.facts import TORCH, Device, Own, Snapshot
from ddtop.model.gpu_memory import JobGpus
from ddtop.model.gpus import devices_of, take
from ddtop.policy import POLICY
from ddtop.wire.records import (
    CudaState,
    Gpu,
    GpuProcess,
    GpuWatch,
    Group,
    GroupProgress,
    HostState,
    Xid,
)
from tests.ui import builders
from tests.ui.builders import NOW, SECOND
from tests.ui.changed import replace

GIB = 1 << 30
WATCH = GpuWatch(400)
STRANGER = GpuProcess(3310, 31 * GIB, user="bob", command="python sample.py")


def card(index: int, rank: int, **more: object) -> Gpu:
    """One GPU at work with a rank on it."""
    given: dict[str, object] = {
        "util_ratio": 0.97 - index % 3 * 0.01,
        "used_bytes": (41 + index) * GIB,
        "total_bytes": 80 * GIB,
        "name": "NVIDIA H100 80GB HBM3",
        "processes": (GpuProcess(4800 + rank, (41 + index) * GIB, rank=rank),),
        "sm_mhz": 1755,
        "sm_max_mhz": 1980,
        "power_watts": 612.0,
        "power_cap_watts": 700.0,
        "celsius": 61 + index,
        "throttle": (),
        "pcie_generation": 5,
        "pcie_width": 16,
        "pcie_width_max": 16,
        "nvlinks": 18,
        "nvlinks_total": 18,
        "ecc_uncorrected": 0,
    }
    return Gpu(index, f"GPU-{rank:08x}", **(given | more))  # type: ignore[arg-type]


WAITS: dict[str, object] = {"util_ratio": 1.0, "power_watts": 191.0}
"""What NVML tells of a card that spins in NCCL."""


def on_gpus(
    world_size: int = 8,
    changes: dict[int, dict[str, object]] | None = None,
    waits: Collection[int] = (),
    watch: GpuWatch = WATCH,
    of: Snapshot | None = None,
) -> Snapshot:
    """A healthy job (or `of`), one GPU per rank, eight per host. `changes`: of the GPUs, by rank.
    `waits`: ranks whose GPUs only wait.
    """
    snapshot = builders.healthy(world_size) if of is None else of
    changes = {**dict.fromkeys(waits, WAITS), **(changes or {})}
    hosts, devices, ranks = [], [], []
    for number, known in enumerate(snapshot.hosts):
        mine = [rank for rank in snapshot.ranks if rank.rank // 8 == number]
        gpus = tuple(card(rank.rank % 8, rank.rank, **changes.get(rank.rank, {})) for rank in mine)
        host = HostState(
            known.host,
            64,
            0.4,
            512 * GIB,
            300 * GIB,
            256 * GIB,
            200 * GIB,
            gpus=gpus,
            gpu_watch=watch,
            relay_rss_bytes=30 << 20,
        )
        owns = {rank.rank: Own(gpu, TORCH) for rank, gpu in zip(mine, gpus, strict=True)}
        hosts.append(host)
        seen = JobGpus()
        take(seen, host, owns, 0, POLICY)
        devices += [
            replace(one, power_mean_watts=188.2) if waits and waits_on(one, waits) else one
            for one in devices_of(seen, POLICY)[""]
        ]
        for rank in mine:
            assert rank.hello is not None
            cuda = CudaState(
                rank.rank % 8, None, None, 36 * GIB, 39 * GIB, 38 * GIB, 0, 0, "2.27.5"
            )
            hello = builders.hello(rank.rank, world_size)
            hello = type(hello)(
                **{name: getattr(hello, name) for name in hello.__struct_fields__}
                | {"backend": "nccl"}
            )
            groups = (GroupProgress("0", 74_892, 74_891, last_op="all_reduce"),)
            spins = rank.rank in waits
            ranks.append(
                replace(
                    rank,
                    gpu={"own": owns[rank.rank], "cuda": cuda, "waits": spins},
                    hello=hello,
                    comm={"groups": groups},
                )
            )
    groups = tuple(Group(one.name, one.description, one.ranks, "nccl") for one in snapshot.groups)
    return replace(
        snapshot,
        groups=groups,
        ranks=tuple(ranks),
        hosts=tuple(hosts),
        devices=tuple(devices),
        host_ages_s=(0.4,) * len(hosts),
    )


def waits_on(device: Device, waits: Collection[int]) -> bool:
    return any(rank in waits for rank in device.ranks)


TROUBLE: dict[int, dict[str, object]] = {
    1: {"throttle": ("hw_thermal",), "sm_mhz": 1005, "celsius": 91},
    3: {"processes": (GpuProcess(4803, 41 * GIB, rank=3), STRANGER), "used_bytes": 76 * GIB},
    5: {"lost": True, "xids": (Xid(79, NOW - 8 * SECOND),), "util_ratio": None},
    6: {"xids": (Xid(94, NOW - 9 * SECOND),), "ecc_uncorrected": 2, "nvlinks": 17, "pcie_width": 8},
}
