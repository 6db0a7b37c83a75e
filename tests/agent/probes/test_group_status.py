"""How one group's status and entries are read on NCCL, where p2p has numbers of its own."""

import pytest

from ddtop.agent.probes.groups import GroupWatch
from ddtop.wire.records import Collective

SECOND = 1_000_000_000


def entry(seq, state="retired", op_id=None, created_s=0):
    return Collective(
        "0", "all_reduce", seq, op_id or seq, ((4,),), ("Float",), state, created_s * SECOND or None
    )


def stands(seq=10, status=(501, 499)):
    """A stage that has enqueued `seq` collectives, then sends and receives; one is open."""
    watch = GroupWatch(enqueued=seq)
    watch.take_mixed_status(status[0] - 1, status[1], 1 * SECOND)
    watch.take_mixed_status(*status, 2 * SECOND)
    watch.take_mixed_status(*status, 3 * SECOND)
    return watch


def test_a_status_of_sends_and_receives_moves_with_them_and_is_no_collective():
    watch = stands()

    assert (watch.moved_at, watch.enqueued, watch.pending_since) == (2 * SECOND, 10, None)


def test_the_first_status_of_that_kind_is_no_movement():
    watch = GroupWatch(enqueued=10)
    watch.take_mixed_status(500, 499, SECOND)

    assert watch.moved_at == 0


def test_where_only_a_receive_is_open_no_collective_is():
    watch = stands()
    watch.take_entries([entry(9), entry(10)], False, 1)

    assert (watch.completed, watch.pending_since, watch.open) == (10, None, [])


def test_where_a_collective_is_open_it_is_pending_since_it_was_made():
    watch = stands(seq=11, status=(11, 499))
    watch.take_entries([entry(10), entry(11, "scheduled", created_s=4)], False, 1)

    assert (watch.completed, watch.pending_since) == (10, 4 * SECOND - 1)

    assert watch.take_mixed_status(11, 11, 9 * SECOND) == 5 * SECOND + 1
    assert (watch.completed, watch.pending_since, watch.open) == (11, None, [])


@pytest.mark.parametrize(("counts_singles", "since_s"), [(True, 3), (False, 8)])
def test_a_wait_on_nccl_is_as_old_as_what_came_back_before_it(counts_singles, since_s):
    """The host has enqueued the calls of half a minute. On gloo it is inside each of them."""
    watch = GroupWatch(enqueued=12, completed=10)
    watch.take_status(12, 10, 7 * SECOND)
    watch.take_status(12, 11, 8 * SECOND)
    watch.take_status(12, 11, 9 * SECOND)
    watch.take_entries([entry(11), entry(12, "scheduled", created_s=3)], counts_singles, 1)

    assert watch.pending_since == pytest.approx(since_s * SECOND, abs=1)


def test_a_status_that_is_alike_has_nothing_open():
    watch = GroupWatch(enqueued=10)
    watch.take_mixed_status(500, 500, SECOND)

    assert (watch.completed, watch.pending_since) == (10, None)


@pytest.mark.parametrize(("counts_singles", "offset"), [(True, 290), (False, None)])
def test_only_gloo_counts_sends_and_receives_in_the_number_that_is_compared(counts_singles, offset):
    """NCCL counts them in op_id only: subtracted there, a rank would look far behind."""
    watch = GroupWatch(enqueued=10)
    watch.take_entries([entry(10, op_id=300)], counts_singles, 1)

    assert watch.offset == offset


def test_what_was_captured_into_a_graph_of_nccl_is_not_open():
    """Entries of captured calls stay scheduled, because a replay writes no entries."""
    watch = GroupWatch(enqueued=12, completed=11, pending_since=SECOND)
    watch.take_entries([entry(3, "scheduled"), entry(11), entry(12, "scheduled")], False, 1)

    assert [one.seq for one in watch.open] == [12]


def lags(enqueued=10, completed=9, since_s=2):
    """A group of gloo whose last status shows an open collective."""
    watch = GroupWatch(enqueued=enqueued)
    watch.take_status(enqueued - 1, enqueued - 1, SECOND)
    watch.take_status(enqueued, completed, since_s * SECOND)
    return watch


def test_where_all_entries_have_retired_nothing_is_open_whatever_gloos_status_says():
    """Two threads complete two collectives in reverse order, and the lower number stays."""
    watch = lags()
    assert watch.pending_since == 2 * SECOND
    watch.take_entries([entry(9), entry(10)], True, 1)

    assert (watch.completed, watch.pending_since) == (10, None)


def test_what_the_entries_have_said_holds_while_the_status_is_the_same():
    watch = lags()
    watch.take_entries([entry(9), entry(10)], True, 1)
    waited = [watch.take_status(10, 9, second * SECOND) for second in range(3, 30)]

    assert (watch.completed, watch.pending_since, watch.moved_at) == (10, None, 0)
    assert waited == [None] * 27


def test_the_next_collective_that_stays_open_is_noticed_from_its_own_begin():
    watch = lags()
    watch.take_entries([entry(9), entry(10)], True, 1)
    watch.take_status(11, 9, 20 * SECOND)

    assert (watch.completed, watch.pending_since) == (10, 20 * SECOND)

    watch.take_entries([entry(9), entry(10), entry(11, "scheduled")], True, 1)
    watch.take_status(11, 9, 30 * SECOND)

    assert (watch.completed, watch.pending_since) == (10, 20 * SECOND)
    assert [one.seq for one in watch.open] == [11]
    assert watch.take_status(11, 11, 40 * SECOND) == 20 * SECOND
    assert watch.pending_since is None


def test_of_several_only_those_are_open_that_have_not_retired():
    """12 completed after 13. The status has 12, and 14 is really open."""
    watch = lags(14, 12)
    watch.take_entries([entry(12), entry(13), entry(14, "scheduled")], True, 1)
    watch.take_status(14, 12, 9 * SECOND)

    assert (watch.completed, watch.pending_since) == (13, 2 * SECOND)


def test_a_collective_that_the_status_has_passed_is_open_after_two_reads_agree():
    """It may complete between the read of the status and the read of the entries."""
    found = [entry(9, "scheduled", created_s=5), entry(10)]
    watch = lags(10, 10)
    watch.take_entries(found, True, 1)
    first = watch.pending_since
    watch.take_entries(found, True, 1)
    watch.take_status(10, 10, 9 * SECOND)

    assert (first, watch.pending_since, watch.completed) == (None, 5 * SECOND - 1, 8)

    watch.take_status(10, 9, 12 * SECOND)
    watch.take_entries([entry(9), entry(10)], True, 1)
    assert watch.pending_since is None


def test_a_group_whose_entries_are_all_overwritten_has_nothing_open():
    """Its last use was thousands of collectives ago."""
    watch = lags()
    watch.take_entries([], True, 1)

    assert (watch.completed, watch.pending_since) == (10, None)


def test_entries_that_end_before_the_status_prove_nothing():
    watch = lags()
    watch.take_entries([entry(8), entry(9)], True, 1)

    assert watch.pending_since == 2 * SECOND


def test_a_group_that_was_made_anew_is_judged_by_its_own_status():
    watch = lags(500, 499)
    watch.take_entries([entry(499), entry(500)], True, 1)
    watch.enqueued, watch.completed = 0, None
    watch.take_status(3, 2, 9 * SECOND)

    assert (watch.completed, watch.pending_since) == (2, 9 * SECOND)
