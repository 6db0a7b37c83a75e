"""A job whose ranks end by SIGTERM, one after the other."""

from __future__ import annotations

from ddtop.wire.records import HelperEnd, LastException
from tests.jobs import place, trained, unix_ns


def ended_by_sigterm(helper, signal=15):
    """mp.spawn ends the ranks within a moment when one of its children fails."""
    job = trained()
    job.host_says = {"helpers": (helper(unix_ns(job.now - 0.2)),)}
    for rank in job.ranks:
        rank.ends(signal=signal, later_s=0.01 * rank.number)
    return job.passes(3)


def raised(at_unix_ns, kind="RuntimeError"):
    where = place("serve", "/home/ada/server.py", 12)
    return HelperEnd(
        4990,
        at_unix_ns,
        1,
        None,
        LastException(kind, "no such table", at_unix_ns, where),
        "python train.py",
    )
