"""A job whose ranks end by SIGTERM, one after the other."""

from __future__ import annotations

from tests.jobs import trained, unix_ns


def ended_by_sigterm(helper, signal=15):
    """mp.spawn ends the ranks within a moment when one of its children fails."""
    job = trained()
    job.host_says = {"helpers": (helper(unix_ns(job.now - 0.2)),)}
    for rank in job.ranks:
        rank.ends(signal=signal, later_s=0.01 * rank.number)
    return job.passes(3)
