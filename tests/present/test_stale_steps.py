"""The speed that a rank reported while it made steps is not shown afterwards."""

import msgspec

from ddtop.follow.history import SeriesHistory
from ddtop.model.hosts import silent_drivers
from ddtop.policy import POLICY
from ddtop.present.filter import by_column, parse_filter
from ddtop.present.findings import header_line
from ddtop.present.map import Levelled, codes_of
from ddtop.present.numbers import BY_KEY, CellContext, cell_text
from ddtop.present.text import plain
from ddtop.say.calm import calm_text
from ddtop.say.evidence import place_line
from ddtop.wire.records import GpuWatch, HostState
from tests.jobs import FakeJob, trained


def resting(seconds):
    """All ranks are stuck at the same line, and wait for no rank."""
    job = trained()
    for rank in job.ranks:
        rank.stands_at("validate", "eval.py", 31)
    job.passes(seconds)
    return job.snapshot()


def test_a_rank_that_makes_no_step_has_no_step_time():
    before, after = trained().snapshot(), resting(3)
    context = CellContext(after.time_unix_ns)

    assert cell_text(BY_KEY["step"], before.ranks[0], context, 7) != "-"
    assert cell_text(BY_KEY["step"], after.ranks[0], context, 7) == "-"
    assert after.ranks[0].progress.step_ms is not None


def test_no_view_sorts_filters_or_colours_by_a_step_time_that_the_table_leaves_blank():
    job = trained()
    job.others_wait(2)
    snapshot = job.passes(3).snapshot()
    context = CellContext(snapshot.time_unix_ns)
    shown = {
        rank.rank for rank in snapshot.ranks if cell_text(BY_KEY["step"], rank, context, 7) != "-"
    }
    stale = [rank.rank for rank in snapshot.ranks if rank.rank not in shown]
    assert stale
    assert all(rank.progress.step_ms is not None for rank in snapshot.ranks)

    steps = parse_filter("step>0")
    passing = {one.rank for one in snapshot.ranks if steps.passes(one, False, context.time_unix_ns)}
    levels = Levelled().take(BY_KEY["step"], snapshot, codes_of(snapshot))
    assert passing == shown
    assert by_column(snapshot, "step", descending=True)[-len(stale) :] == stale
    assert [number for number, code in enumerate(levels.codes) if code == 0] == stale


def test_its_line_of_step_times_has_a_gap_there():
    history = SeriesHistory()
    for snapshot in (trained().snapshot(), resting(3)):
        history.record(snapshot)

    first, second = history.memory_of(0).step_ms
    assert first is not None
    assert second is None


def test_three_seconds_after_the_last_step_no_speed_is_claimed():
    snapshot = resting(3)

    assert snapshot.moving == 4
    assert "it/s" not in plain(header_line(snapshot, 120))
    assert "last progress" in plain(header_line(snapshot, 120))
    assert calm_text(snapshot, POLICY).startswith("ok: last progress 3 s ago")


def test_a_job_of_which_one_rank_moves_is_not_just_ok():
    job = FakeJob(4).trains(10)
    job.others_wait(2)
    snapshot = job.passes(7).snapshot()

    text = calm_text(snapshot, POLICY)
    assert text.startswith("1/4 moving, ranks 0,1,3 wait"), text


def test_where_a_silent_rank_was_is_reported_of_then():
    job = trained()
    job.ranks[2].stands_at("hold", "train.py", 71)
    job.passes(1)
    job.ranks[2].freezes()
    job.passes(12)

    line = place_line(job.snapshot().ranks[2])
    assert line is not None
    assert line.startswith("at its last report, rank 2 was at")


def test_a_driver_that_does_not_answer_is_told_of_in_every_view():
    host = HostState("node3", 8, 0.5)
    silent = [
        msgspec.structs.replace(host, gpu_watch=GpuWatch(age_ms=40_000)),
        msgspec.structs.replace(host, gpu_watch=GpuWatch(age_ms=500)),
    ]

    (note,) = silent_drivers(silent, POLICY)
    assert note == "the GPU driver does not answer on node3: the GPU numbers there are old"
