"""Jobs for the tests of `crowded` and of the policy."""

from ddtop.wire.records import ProcessLoad
from tests.jobs import SECOND


def loaded(job, seconds, **per_s):
    """Time passes. These counters of `ProcessLoad` grow at these rates on all ranks."""
    grow = {name: value for name, value in per_s.items() if name.endswith("_ns")}
    rest = {name: value for name, value in per_s.items() if name not in grow}
    for _ in range(round(seconds)):
        job.told_s = getattr(job, "told_s", 0) + 1
        counters = {name: round(value * job.told_s * SECOND) for name, value in grow.items()}
        for rank in job.ranks:
            rank.seen_outside = {"load": ProcessLoad(**counters, **rest)}
        job.trains(1)


GIB = 1 << 30
