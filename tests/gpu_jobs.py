"""A made-up job on GPUs: its GPUs, which other processes use them, and how they change."""

import msgspec

from ddtop.wire.records import Gpu, GpuProcess, GpuWatch
from tests.jobs import FakeJob

GIB = 1 << 30


def card(index, *ranks, **more):
    """One GPU with these ranks on it."""
    given = {
        "util_ratio": 0.9,
        "used_bytes": 40 * GIB,
        "total_bytes": 80 * GIB,
        "name": "H100",
        "processes": tuple(GpuProcess(4800 + rank, 20 * GIB, rank=rank) for rank in ranks),
        "sm_mhz": 1755,
        "sm_max_mhz": 1980,
        "celsius": 60,
        "power_watts": 600.0,
        "power_cap_watts": 700.0,
        "throttle": (),
    }
    return Gpu(index, f"GPU-{index}", **(given | more))


def free(index):
    return card(index, used_bytes=GIB // 4, util_ratio=0.0)


def stranger(pid=3310, used=31 * GIB, **more):
    return GpuProcess(pid, used, user="bob", command="python sample.py", **more)


def holding(one, *processes, **more):
    """The GPU with these processes in addition to those of its ranks."""
    return msgspec.structs.replace(one, processes=(*one.processes, *processes), **more)


class GpuJob(FakeJob):
    """A job on one host with GPUs, one per rank unless given otherwise."""

    def __init__(self, *cards, world_size=4):
        super().__init__(world_size)
        self.has(*(cards or [card(number, number) for number in range(world_size)]))

    def has(self, *cards):
        self.host_says = {"gpus": cards, "gpu_watch": GpuWatch(300)}

    def change(self, index, **more):
        cards = list(self.host_says["gpus"])
        cards[index] = msgspec.structs.replace(cards[index], **more)
        self.has(*cards)
