"""Which ranks are stragglers where only many looks at their stacks are available."""

import msgspec
import pytest

from ddtop.model.stragglers import ByStack, late_of, suspects_of
from ddtop.policy import POLICY
from ddtop.wire.records import OutsideLook

LATE = OutsideLook(looks=40, looks_s=5.0, call_looks=2, wait_looks=2, one_wait_looks=1)
WAITS = OutsideLook(looks=16, looks_s=5.0, call_looks=11, wait_looks=11, one_wait_looks=2)


def late(*looks):
    return late_of(dict(enumerate(looks)), POLICY)


def changed(look, **fields):
    return msgspec.structs.replace(look, **fields)


def test_the_rank_that_is_never_in_the_wait_is_late():
    found = late(WAITS, LATE, WAITS, WAITS)

    assert (found.ranks, found.waiters, found.looks) == ((1,), (0, 2, 3), 16)
    assert (round(found.call_ratio, 3), round(found.wait_ratio, 3)) == (0.05, 0.688)


def test_waits_of_less_than_half_of_the_time_are_no_proof():
    """Where rank 0 validates every few seconds, the others wait for 40 % of the time."""
    rare = changed(WAITS, looks=20, call_looks=9, wait_looks=9)
    often = changed(WAITS, looks=20, call_looks=11, wait_looks=11)

    assert late(rare, changed(LATE, looks=40, call_looks=0), rare) is None
    assert late(often, changed(LATE, looks=16, call_looks=0), often).ranks == (1,)


def test_the_chance_that_a_rank_waits_like_the_others_and_was_not_seen_counts():
    often = changed(WAITS, looks=20, call_looks=11, wait_looks=11)

    assert late(often, changed(LATE, looks=12, call_looks=0), often).ranks == (1,)
    assert late(often, changed(LATE, looks=12, call_looks=1), often) is None


def test_ranks_that_work_while_few_wait_are_no_stragglers():
    """Under Join a rank that has no more data waits in the collectives of all others."""
    assert late(WAITS, LATE, LATE) is None


def test_several_ranks_may_be_late():
    assert late(LATE, WAITS, WAITS, LATE).ranks == (0, 3)


@pytest.mark.parametrize(
    "looks",
    [
        (changed(WAITS, call_looks=4, wait_looks=4), LATE),
        (WAITS, changed(WAITS, call_looks=3, wait_looks=3), LATE),
        (WAITS, changed(LATE, call_looks=8)),
        (WAITS, changed(LATE, looks=11, call_looks=0)),
        (changed(WAITS, call_looks=7, wait_looks=7), changed(LATE, looks=14, call_looks=0)),
        (changed(WAITS, looks=3, call_looks=3, wait_looks=3), LATE),
        (changed(WAITS, one_wait_looks=8), LATE),
        (changed(WAITS, looks_s=2.0), LATE),
        (WAITS, LATE, None),
        (WAITS, WAITS),
        (LATE, LATE),
    ],
    ids=[
        "the others hardly wait",
        "one of the others hardly waits",
        "it waits now and then",
        "few looks at it",
        "it may be chance",
        "few looks at the others",
        "one long wait, as for a checkpoint",
        "a short time",
        "a rank that nobody could read",
        "all of them wait",
        "none of them waits",
    ],
)
def test_nobody_is_late_where(looks):
    assert late(*looks) is None


def test_after_two_looks_a_rank_is_a_suspect_only():
    """Then it is looked at more often, so that a verdict is ready within seconds."""
    few = changed(LATE, looks=2, looks_s=1.0, call_looks=0)
    looks = {0: changed(WAITS, looks=2, call_looks=2, wait_looks=2), 1: few}

    assert (suspects_of(looks, POLICY).ranks, late_of(looks, POLICY)) == ((1,), None)


def test_more_looks_decide_where_few_have_found_the_others_in_a_wait_seldom():
    seldom = changed(WAITS, looks=4, call_looks=1, wait_looks=1)
    looks = {0: seldom, 1: changed(LATE, looks=5, call_looks=0, wait_looks=0)}

    assert (suspects_of(looks, POLICY).ranks, late_of(looks, POLICY)) == ((1,), None)


def test_a_wait_for_a_gpu_may_be_a_wait_for_others():
    """So a rank in such a call is neither late nor certain to wait."""
    assert late(WAITS, changed(LATE, call_looks=30, wait_looks=0)) is None
    assert late(changed(WAITS, wait_looks=0), LATE) is None


def test_two_long_waits_in_four_seconds_are_validations_and_no_straggler():
    seconds = POLICY.of(ByStack).late_s
    works = OutsideLook(looks=13, looks_s=seconds)
    validations = changed(
        WAITS, looks=13, looks_s=seconds, call_looks=7, wait_looks=7, one_wait_looks=3
    )

    assert late(validations, works) is None
    assert late(changed(validations, one_wait_looks=1), works).ranks == (1,)
