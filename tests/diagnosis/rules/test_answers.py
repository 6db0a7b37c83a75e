"""Ranks that wait for another rank in no call of a group: a key of the store, a request, a pipe."""

import pytest

from ddtop.wire.records import PIPE, TAKES, Link
from tests.diagnosis.rules.answers import LOCK, key, request, waiting


@pytest.mark.parametrize(
    ("links", "ranks"),
    [
        ((key(TAKES),), (0, 1)),
        ((request(None),), (0, 1)),
        ((Link(PIPE, "/d/x", nobody=True, does="writes"),), (0, 1)),
        ((key(),), (0,)),
    ],
)
def test_other_waits_and_several_ranks_that_wait_for_nobody_blame_none(links, ranks):
    job = waiting(LOCK, *links, ranks=ranks)
    job.ranks[1].stands_at("collect", line=30, waits_on="lock" if ranks == (0,) else "socket")

    assert "not-in-collective" not in [kind for _, kind, _ in job.passes(30).ever()]
