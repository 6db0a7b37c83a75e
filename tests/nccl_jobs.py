"""A made-up job on NCCL with one GPU per rank: what each GPU shows from second to second."""

import msgspec

from ddtop.wire.records import Group
from tests.gpu_jobs import GpuJob
from tests.jobs import WORLD, brief

COMPUTES = {"util_ratio": 1.0, "power_watts": 620.0, "sm_mhz": 1755}
WAITS = {"util_ratio": 1.0, "power_watts": 180.0, "sm_mhz": 1980}
HOT = {
    "util_ratio": 1.0,
    "power_watts": 310.0,
    "sm_mhz": 1005,
    "throttle": ("hw_thermal", "hw_slowdown"),
    "celsius": 91,
}
WARM_S = 70


class NcclJob(GpuJob):
    """Eight ranks that train on NCCL, each with a GPU. They synchronize at each step, so no host is
    late.
    """

    def __init__(self, world_size=8, **job):
        super().__init__(world_size=world_size, **job)
        self.groups = {WORLD: Group(WORLD, "default_pg", tuple(range(world_size)), "nccl")}
        for rank in self.ranks:
            rank.told["backend"] = "nccl"
            self.greet(rank)

    def new_nccl_group(self, name, *members):
        self.new_group(name, *members)
        self.groups[name] = msgspec.structs.replace(self.groups[name], backend="nccl")
        for number in members:
            self.greet(self.ranks[number])

    def runs(self, seconds, does):
        """`does(second, rank)`: what its GPU shows then."""
        for second in range(seconds):
            for number in range(self.world_size):
                self.change(number, **does(second, number))
            self.trains(1)
        return self

    def warms_up(self, seconds=WARM_S):
        return self.runs(seconds, lambda second, rank: COMPUTES)

    def stood(self):
        """(severity, kind, ranks) of the findings of any time."""
        return list(
            dict.fromkeys(
                brief(one) for verdict in self.verdicts(every_s=1.0) for one in verdict.findings
            )
        )


def one_computes(*late, others=WAITS):
    return lambda second, rank: COMPUTES if rank in late else others
