"""What one group's status and entries make of it, on NCCL where sends and receives have numbers of their own."""

from __future__ import annotations

import pytest

from ddtop.agent.watch import Watch
from ddtop.wire.records import Collective

SECOND = 1_000_000_000


def entry(seq, state="retired", op_id=None, created_s=0):
    return Collective("0", "all_reduce", seq, op_id or seq, ((4,),), ("Float",), state, created_s * SECOND or None)


def stands(seq=10, status=(501, 499)):
    """A stage of a pipeline that has put in so many collectives; its last calls were sends and receives, one of which is open."""
    watch = Watch(enqueued=seq)
    watch.take_mixed_status(status[0] - 1, status[1], 1 * SECOND)
    watch.take_mixed_status(*status, 2 * SECOND)
    watch.take_mixed_status(*status, 3 * SECOND)
    return watch


def test_a_status_of_sends_and_receives_moves_with_them_and_is_no_collective():
    watch = stands()

    assert (watch.moved_at, watch.enqueued, watch.pending_since) == (2 * SECOND, 10, None)


def test_the_first_status_of_that_kind_is_no_movement():
    watch = Watch(enqueued=10)
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
    """The host has put in the calls of half a minute; on gloo it is inside each of them."""
    watch = Watch(enqueued=12, completed=10)
    watch.take_status(12, 10, 7 * SECOND)
    watch.take_status(12, 11, 8 * SECOND)
    watch.take_status(12, 11, 9 * SECOND)
    watch.take_entries([entry(11), entry(12, "scheduled", created_s=3)], counts_singles, 1)

    assert watch.pending_since == pytest.approx(since_s * SECOND, abs=1)


def test_a_status_that_is_alike_has_nothing_open():
    watch = Watch(enqueued=10)
    watch.take_mixed_status(500, 500, SECOND)

    assert (watch.completed, watch.pending_since) == (10, None)


@pytest.mark.parametrize(("counts_singles", "offset"), [(True, 290), (False, None)])
def test_only_gloo_counts_sends_and_receives_in_the_number_that_is_compared(counts_singles, offset):
    """NCCL's op_id has them too, and its sequence number has not: taken off there, a rank would look hundreds of collectives behind."""
    watch = Watch(enqueued=10)
    watch.take_entries([entry(10, op_id=300)], counts_singles, 1)

    assert watch.offset == offset


def test_what_was_captured_into_a_graph_of_nccl_is_not_open():
    """Its entries stay scheduled: each replay is a launch without any."""
    watch = Watch(enqueued=12, completed=11, pending_since=SECOND)
    watch.take_entries([entry(3, "scheduled"), entry(11), entry(12, "scheduled")], False, 1)

    assert [one.seq for one in watch.open] == [12]
