"""Jobs of `test_straggler_by_stack.py` and of the pages of findings."""

import msgspec

from ddtop.wire.records import OutsideLook
from tests.jobs import SECOND, FakeJob, unix_ns

LATE = OutsideLook(looks=40, looks_s=5.0, call_looks=2, wait_looks=2, one_wait_looks=1)


WAITS = OutsideLook(
    "collective",
    "all_reduce",
    looks=16,
    looks_s=5.0,
    call_looks=11,
    wait_looks=11,
    one_wait_looks=2,
)


def job_of(*looks):
    """A job that makes progress, with these looks at its stacks."""
    job = FakeJob(len(looks)).trains(6)
    for number, look in enumerate(looks):
        since = unix_ns(job.now) - SECOND // 20
        job.ranks[number].says["outside"] = msgspec.structs.replace(look, since_unix_ns=since)
    job.ranks[1].works_at(function="augment", line=31, activity="other")
    return job.trains(2)
