"""Ranks that run and do not find each other: in the wrong place, twice, or at an old file."""

import msgspec
import pytest

from ddtop.wire.records import StackFrame
from tests.diagnosis.rules.rendezvous import STRANGER, all_enter, meets, starts_a_twin

# -- duplicate-rank


@pytest.mark.parametrize(
    "told",
    [
        {"environment": {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "31007"}},
        {"environment": {"MASTER_PORT": "31007"}, "inside": False, "joined": True},
        {"world_size": 1},
        {"init_method": "tcp://127.0.0.1:31007"},
        {"inside": False},
        {"inside": False, "joined": True, "waits": False},
        {"above": 4999},
    ],
)
def test_a_child_that_makes_another_group_or_has_made_it_is_no_duplicate(told):
    assert "duplicate-rank" not in [kind for _, kind, _ in starts_a_twin(**told).ever()]


# -- master-unreachable


@pytest.mark.parametrize(
    ("function", "kind"), [("init_process_group", "master-unreachable"), ("serve", "rank-crashed")]
)
def test_a_rank_that_fails_before_its_agent_has_reported_the_call_is_known_by_its_traceback(
    function, kind
):
    """A port that is in use ends init_process_group within milliseconds."""
    job = meets(2)
    all_enter(job, 1, **STRANGER)
    rank = job.ranks[0]
    rank.raises("DistNetworkError", "failed to listen. name: EADDRINUSE")
    frames = (StackFrame("main", "/home/ada/t.py", 3), StackFrame(function, "/lib/c10d.py", 9))
    rank.exception = msgspec.structs.replace(rank.exception, frames=frames)
    rank.ends(1)
    job.passes(3)

    assert rank.hello().init_unix_ns is None
    assert job.finding().kind == kind
