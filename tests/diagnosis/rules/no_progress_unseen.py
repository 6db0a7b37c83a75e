"""Jobs of `test_no_progress_unseen.py` and of the pages of findings."""

from ddtop.wire.records import OutsideLook
from tests.jobs import FakeJob, unix_ns


def half_seen(outside=True, **standing):
    """Of four ranks, 0 and 1 are on this host, and they make no progress."""
    job = FakeJob(4, absent=(2, 3)).trains(6)
    for rank in job.ranks[:2]:
        rank.stands_at(**standing)
        if outside:
            rank.says["outside"] = OutsideLook(since_unix_ns=unix_ns(job.now), asleep=True)
    return job
