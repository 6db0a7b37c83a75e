"""Sequence numbers of several ranks, compared."""

import pytest

from ddtop.model.wait_graph import comparable_seq, first_open_seq
from ddtop.wire.records import Collective, GroupProgress


def progress(**changes):
    return GroupProgress("0", changes.pop("enqueued", 10), **changes)


@pytest.mark.parametrize(
    ("found", "seq"),
    [
        (progress(completed=9), 10),
        (progress(completed=7), 8),
        (progress(completed=9, p2p_offset=4), 6),
        (progress(completed=None), 10),
        (progress(completed=None, p2p_offset=4), 6),
    ],
)
def test_without_entries_the_one_after_the_last_completed_is_open(found, seq):
    assert first_open_seq(found) == seq


def test_the_open_entry_precedes_the_count():
    """monitored_barrier advances the count by two and leaves no entry: 300 is completed, 303 is
    next."""
    rank0 = progress(enqueued=505, completed=500, p2p_offset=202)
    rank2 = progress(enqueued=303, completed=300, p2p_offset=0)
    opened = [Collective("0", "all_reduce", 303, 505), Collective("1", "all_gather", 7, 7)]

    assert first_open_seq(rank0, opened) == first_open_seq(rank2, opened) == 303


def test_a_rank_that_passed_the_barrier_and_went_elsewhere_is_behind_the_open_one():
    """Its own count includes the barrier, and not the all_reduce that the others wait in."""
    assert comparable_seq(progress(enqueued=302, completed=300, p2p_offset=0)) == 302 < 303
