"""Which failures of a process group are about other ranks."""

import pytest
from msgspec.structs import replace

from ddtop.model.ending import comm_failure
from tests.jobs import FakeJob

CLOSED = "[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1234"


@pytest.mark.parametrize("enqueued", [0, 1])
def test_a_group_that_fails_before_its_first_collective_has_not_worked(enqueued):
    """It failed to start, which says nothing about another rank."""
    job = FakeJob(2).passes(1)
    job.ranks[1].raises("RuntimeError", CLOSED)
    job.ranks[1].ends(1)
    rank = job.passes(1).snapshot().ranks[1]
    (group,) = rank.comm.groups
    rank = replace(
        rank,
        progress=replace(rank.progress, last_unix_ns=None),
        comm=replace(rank.comm, groups=(replace(group, enqueued=enqueued),)),
    )

    assert comm_failure(rank) is bool(enqueued)
