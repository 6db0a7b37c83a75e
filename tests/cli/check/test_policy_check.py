"""The policy decides what a node needs."""

import pytest

from ddtop.cli.check.trial import BAD
from ddtop.policy import POLICY
from tests.cli.check.trials import MIB, lines_of, node


def bad(facts, **changes):
    """The checks that are bad by this policy, of two nodes with two ranks each."""
    lines = lines_of(node(), node(2, "node1", **facts), policy=POLICY.with_limits(changes))
    return [one.what for one in lines if one.mark == BAD]


CASES = [
    ({"shm_bytes": 64 * MIB}, {"check_shm_bytes_per_rank": 32 * MIB}, ["/dev/shm"], []),
    ({"nofile": 256}, {"check_files": 128}, ["limits"], []),
    ({"nofile": 2048}, {"check_files_per_rank": 1024}, [], ["limits"]),
    ({"nproc": 100}, {"check_tasks_per_rank": 20}, ["limits"], []),
    ({"offset": [4.0, 0.1]}, {"check_clock_s": 5.0}, ["clock"], []),
]


@pytest.mark.parametrize(
    ("facts", "changes", "ours", "theirs"), CASES, ids=[next(iter(case[1])) for case in CASES]
)
def test_the_policy_says_what_a_node_needs(facts, changes, ours, theirs):
    assert (bad(facts), bad(facts, **changes)) == (ours, theirs)
