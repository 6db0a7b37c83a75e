"""The policy decides what looks at stacks prove about stragglers and waits."""

import msgspec
import pytest

from ddtop.model.facts import CommFacts, RankFields, State
from ddtop.model.peer_waits import stack_waits_of
from ddtop.model.stragglers import ByStack, late_of, suspects_of
from ddtop.policy import POLICY
from ddtop.wire.records import COLLECTIVE, OutsideLook

SECOND = 1_000_000_000
NOW = 1_000 * SECOND
LOOKS = 10 * POLICY.of(ByStack).late_looks
LATE = OutsideLook(
    looks=LOOKS,
    looks_s=10 * POLICY.of(ByStack).late_s,
    call_looks=1,
    wait_looks=1,
    one_wait_looks=1,
)
WAITS = OutsideLook(
    looks=LOOKS,
    looks_s=10 * POLICY.of(ByStack).late_s,
    call_looks=LOOKS - 1,
    wait_looks=LOOKS - 1,
    one_wait_looks=2,
)


def changed(look, **fields):
    return msgspec.structs.replace(look, **fields)


def late(looks, **changes):
    """The ranks that are certainly late under this policy."""
    found = late_of(dict(enumerate(looks)), POLICY.with_limits(changes))
    return found.ranks if found is not None else ()


def share(ratio):
    return int(ratio * LOOKS)


MOSTLY = changed(
    WAITS,
    call_looks=share(0.98 * POLICY.of(ByStack).late_wait_ratio),
    wait_looks=share(0.98 * POLICY.of(ByStack).late_wait_ratio),
)
"""In a collective in a little less of its looks than a waiter has to be."""
OFTEN = changed(
    WAITS,
    call_looks=share(1.1 * POLICY.of(ByStack).late_wait_ratio),
    wait_looks=share(1.1 * POLICY.of(ByStack).late_wait_ratio),
)
"""... in a little more."""
UNLIKE = changed(
    WAITS,
    call_looks=share(0.6 * POLICY.of(ByStack).late_wait_ratio),
    wait_looks=share(0.6 * POLICY.of(ByStack).late_wait_ratio),
)
"""In less than two thirds of that, which the others do not make up for."""
FEW = changed(LATE, looks=POLICY.of(ByStack).late_looks - 1, call_looks=0, wait_looks=0)
SEEN = changed(LATE, looks=2 * POLICY.of(ByStack).late_looks, call_looks=0, wait_looks=0)
THIRD = POLICY.of(ByStack).late_looks // 3
SELDOM = OutsideLook(
    looks=THIRD - 1,
    looks_s=LATE.looks_s,
    call_looks=THIRD - 1,
    wait_looks=THIRD - 1,
    one_wait_looks=1,
)
"""Always in a collective, but looked at too seldom."""


CASES = [
    ((WAITS, LATE), {"stack.late_looks": LOOKS + 1}, (1,), ()),
    ((WAITS, FEW), {"stack.late_looks": FEW.looks}, (), (1,)),
    ((SELDOM, LATE), {"stack.late_looks": 3 * THIRD - 3}, (), (1,)),
    ((WAITS, LATE), {"stack.late_s": 11 * POLICY.of(ByStack).late_s}, (1,), ()),
    ((changed(WAITS, looks_s=0.5 * POLICY.of(ByStack).late_s), LATE),
     {"stack.late_s": 0.4 * POLICY.of(ByStack).late_s}, (), (1,)),
    ((WAITS, LATE), {"stack.late_ratio": 0.0}, (1,), ()),
    ((WAITS, changed(LATE, call_looks=share(1.5 * POLICY.of(ByStack).late_ratio))),
     {"stack.late_ratio": 2 * POLICY.of(ByStack).late_ratio}, (), (1,)),
    ((WAITS, LATE), {"stack.one_wait_ratio": 1 / LOOKS}, (1,), ()),
    ((changed(WAITS, one_wait_looks=share(1.2 * POLICY.of(ByStack).one_wait_ratio)), LATE),
     {"stack.one_wait_ratio": 1.5 * POLICY.of(ByStack).one_wait_ratio}, (), (1,)),
    ((WAITS, LATE), {"stack.late_wait_ratio": 1.0}, (1,), ()),
    ((MOSTLY, LATE), {"stack.late_wait_ratio": 0.9 * POLICY.of(ByStack).late_wait_ratio}, (), (1,)),
    ((WAITS, UNLIKE, LATE), {"stack.late_wait_ratio": 0.8 * POLICY.of(ByStack).late_wait_ratio}, (),
     (2,)),
    ((OFTEN, SEEN), {"stack.late_chance": 1e-30}, (1,), ()),
]  # fmt: skip


@pytest.mark.parametrize(
    ("looks", "changes", "ours", "theirs"), CASES, ids=[next(iter(case[1])) for case in CASES]
)
def test_the_policy_says_who_is_late_by_their_stacks(looks, changes, ours, theirs):
    assert (late(looks), late(looks, **changes)) == (ours, theirs)


def test_two_long_waits_in_four_seconds_are_validations_and_no_straggler():
    seconds = POLICY.of(ByStack).late_s
    works = OutsideLook(looks=13, looks_s=seconds)
    validations = OutsideLook(
        looks=13, looks_s=seconds, call_looks=7, wait_looks=7, one_wait_looks=3
    )

    assert late((validations, works)) == ()
    assert late((changed(validations, one_wait_looks=1), works)) == (1,)


def test_the_policy_says_who_is_looked_at_more_often():
    """After a few looks: half of the share of the waits is enough."""
    usual = POLICY.of(ByStack).late_wait_ratio
    looks = {
        0: changed(WAITS, call_looks=share(0.8 * usual), wait_looks=share(0.8 * usual)),
        1: LATE,
    }

    assert suspects_of(looks, POLICY).ranks == (1,)
    assert suspects_of(looks, POLICY.with_limits({"stack.late_wait_ratio": 1.8 * usual})) is None


IN_CALL = OutsideLook(COLLECTIVE, "all_reduce", NOW - 30 * SECOND, True)
SLEEPS = OutsideLook(None, None, NOW - 31 * SECOND, True, apart_looks=2)
RUNS = OutsideLook(None, None, NOW - SECOND // 10, False)


def waited_for(*looks, **changes):
    """The ranks that rank 0 waits for under this policy; None if it does not wait."""
    ranks = {
        number: RankFields(number, State.RUNNING, comm=CommFacts(outside=look))
        for number, look in enumerate(looks)
    }
    found = stack_waits_of(ranks, NOW, POLICY.with_limits(changes))
    return next((wait.behind for wait in found if wait.rank == 0), None)


def ago(look, seconds):
    return changed(look, since_unix_ns=NOW - int(seconds * SECOND))


def test_the_policy_says_how_long_a_rank_is_in_a_call_that_waits():
    young = ago(IN_CALL, 0.5 * POLICY.stack_wait_s)

    assert waited_for(young, SLEEPS) is None
    assert waited_for(young, SLEEPS, stack_wait_s=0.4 * POLICY.stack_wait_s) == (1,)


def test_the_policy_says_how_long_a_rank_is_elsewhere_that_takes_no_part():
    young = ago(SLEEPS, 0.5 * POLICY.stack_wait_s)

    assert waited_for(IN_CALL, young) == ()
    assert waited_for(IN_CALL, young, stack_wait_s=0.4 * POLICY.stack_wait_s) == (1,)


def test_the_policy_says_after_how_many_looks_a_rank_that_runs_takes_no_part():
    runs = changed(RUNS, apart_looks=POLICY.stack_apart_looks - 1)

    assert waited_for(IN_CALL, runs) == ()
    assert waited_for(IN_CALL, runs, stack_apart_looks=POLICY.stack_apart_looks - 1) == (1,)
