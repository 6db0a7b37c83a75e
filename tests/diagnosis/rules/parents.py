"""The program that started the ranks."""

from __future__ import annotations

from ddtop.wire.records import HelperEnd
from tests.jobs import FakeJob, trained

PARENT = 4700


def finished(*helpers: HelperEnd) -> FakeJob:
    """The ranks have trained well and ended; then these processes end."""
    job = trained(2)
    for rank in job.ranks:
        rank.ends(0)
    job.host_says = {"helpers": helpers}
    return job.passes(2)
