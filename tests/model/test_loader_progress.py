"""Since when the worker that must deliver a batch makes no progress."""

import pytest

from ddtop.model.progress import Owing, follow, moves
from ddtop.policy import POLICY
from ddtop.wire.records import Loader
from tests.jobs import replace_loader

SECOND = 1_000_000_000
OWED = Loader(
    2,
    0,
    4,
    2,
    9001,
    "S",
    5 * SECOND,
    batches=50,
    workers_cpu_ns=0,
    owing_io_bytes=0,
    owing_switches=0,
)
STILL = Owing((9001, 50, 0), False, 6 * SECOND)


def after(seconds=0.5, before=OWED, known=STILL, **changes):
    return follow(known, before, replace_loader(before, **changes), 7 * SECOND, seconds, POLICY)


def test_while_nothing_moves_the_start_stays():
    assert after() == STILL


@pytest.mark.parametrize(
    "grown",
    [{"workers_cpu_ns": SECOND // 20}, {"owing_io_bytes": 40_000}, {"owing_switches": 4}],
    ids=lambda grown: next(iter(grown)),
)
def test_what_moves_starts_the_time_anew_and_a_tenth_of_it_does_not(grown):
    """One wake-up for a signal: a stuck process is never completely inactive."""
    little = {name: value // 10 for name, value in grown.items()}

    assert after(**grown) == Owing(STILL.key, False, 7 * SECOND, 7 * SECOND)
    assert after(**little) == STILL


def test_a_worker_that_reads_its_sample_in_pieces_moves():
    """2 KB five times a second, from a slow disk: "its worker makes no progress" was critical."""
    assert after(owing_io_bytes=5_000).moved_unix_ns == 7 * SECOND
    patient = POLICY.with_limits({"reading.bytes_per_s": 65536.0})
    read = replace_loader(OWED, owing_io_bytes=5_000)

    assert follow(STILL, OWED, read, 7 * SECOND, 0.5, patient) == STILL


@pytest.mark.parametrize(
    "other",
    [{"owing_pid": 9002}, {"batches": 51}, {"exhausted": 1}],
    ids=lambda other: next(iter(other)),
)
def test_another_batch_or_worker_starts_another_wait(other):
    found = after(**other)

    assert (found.still_since_unix_ns, found.moved_unix_ns) == (7 * SECOND, None)


@pytest.mark.parametrize(
    "nothing", [{"owing_pid": None}, {"waiting_since_unix_ns": None}, {"workers_cpu_ns": None}]
)
def test_without_a_worker_a_wait_or_its_counters_nothing_is_known(nothing):
    assert after(**nothing) is None


def test_a_dead_worker_counts_from_its_end_and_needs_no_counters():
    """A wait is not read in its first second, but a dead worker is noticed at once."""
    found = after(owing_state="Z", workers_cpu_ns=None)

    assert found == Owing(STILL.key, True, 7 * SECOND)
    assert after(known=found, owing_state="Z", workers_cpu_ns=SECOND) == found


def test_a_worker_has_moved_lately_for_as_long_as_still_limit_s():
    moved = Owing(STILL.key, False, 7 * SECOND, 7 * SECOND)

    assert moves(moved, 12 * SECOND, POLICY)
    assert not moves(moved, 12 * SECOND + 1, POLICY)
    assert not moves(STILL, 7 * SECOND, POLICY)
    assert not moves(None, 7 * SECOND, POLICY)
