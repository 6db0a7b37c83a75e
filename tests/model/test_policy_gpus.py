"""What the model keeps of GPUs, and whether they wait, follows the policy that is passed in."""

from __future__ import annotations

import pytest

from ddtop.model.gpu_memory import Load
from ddtop.policy import Policy
from ddtop.wire.records import Gpu, GpuWatch
from tests.gpu_jobs import GpuJob
from tests.jobs import SECOND
from tests.second_policy import Case

START = 1_700_000_000 * SECOND
KNOWN, UNKNOWN = (1.0, 600.0), (None, None)
"""(use, watts) in one report of a GPU. The driver may not say them."""
NO_REPORT = None


def load_of(policy: Policy, reports):
    """What the model keeps of a GPU with such a report in each second."""
    load = Load()
    for second, values in enumerate(reports):
        if values is not NO_REPORT:
            util, watts = values
            gpu = Gpu(0, "GPU-0", util, power_watts=watts, sm_mhz=1500)
            load.add(START + second * SECOND, gpu, (None,), policy)
    return load


def falls_quickly(policy):
    """Whether the mean power is below 400 W ten seconds after it fell from 600 to 100 W."""
    return load_of(policy, [KNOWN] * 40 + [(1.0, 100.0)] * 10).power_watts < 400


def spans(reports):
    """The power of each span that is kept after these reports."""
    return lambda policy: [one.power_watts for one in load_of(policy, reports).spans]


def repeated_mean(policy):
    """The mean power of a GPU whose old numbers the relay has repeated for 20 seconds."""
    job = GpuJob(world_size=1)
    job.policy = policy
    job.trains(25)
    job.change(0, power_watts=100.0)
    job.host_says["gpu_watch"] = GpuWatch(5000, "580")
    job.trains(20)
    return round(job.snapshot().devices[0].power_mean_watts, -2)


def device(**changes):
    """A GPU that drew 600 W at first, and has had these values for 25 seconds."""

    def found(policy: Policy):
        job = GpuJob(world_size=1)
        job.policy = policy
        job.trains(25)
        job.change(0, **changes)
        job.trains(25)
        return job.snapshot().devices[0]

    return found


def waits(policy):
    return device(util_ratio=0.97, power_watts=190.0)(policy).waits


def computes(policy):
    return device(power_watts=450.0)(policy).computes


CASES = [
    Case("mean", "gpu.fresh_s", 10.0, repeated_mean, 600, 200),
    Case("mean", "gpu_mean_s", 40.0, falls_quickly, True, False),
    Case("spans", "gpu_mean_s", 20.0, spans([KNOWN] * 45), [600.0] * 4, [600.0] * 2),
    Case(
        "numbers", "gpu-mean.told_ratio", 0.9,
        spans(([KNOWN] * 8 + [UNKNOWN] * 2) * 3), [600.0] * 2, [None] * 2,
    ),
    Case(
        "reports", "gpu-mean.told_ratio", 0.9,
        spans(([KNOWN] * 8 + [NO_REPORT] * 2) * 3), [600.0] * 2, [],
    ),
    Case("waits", "gpu_wait_busy_ratio", 0.99, waits, True, False),
    Case("waits", "gpu_wait_power_ratio", 0.25, waits, True, False),
    Case("computes", "gpu_wait_power_ratio", 0.8, computes, True, False),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=Case.name)
def test_the_policy_says_what_a_gpu_does(case):
    assert case.said_by_both() == (case.ours, case.theirs)
