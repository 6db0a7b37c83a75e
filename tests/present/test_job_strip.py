"""The strip of a job's numbers: now against before, in few words."""

from __future__ import annotations

import pytest

from ddtop.follow.history import JobHistory
from ddtop.policy import POLICY
from ddtop.present.strip import (
    MEASURES,
    THROUGHPUT,
    compared,
    job_facts,
    measured,
    progress_facts,
    scale_range,
    scale_top,
    span_ns,
)
from ddtop.wire.records import TrainingProgress
from tests.ui import builders, gpus, lived
from tests.ui.builders import NOW, SECOND
from tests.ui.changed import replace

BY_KEY = {one.key: one for one in MEASURES}


def history(slower):
    return lived.history_of(builders.healthy(), slower=slower)


def test_a_slower_job_is_reported_with_the_time_since_when_it_was_faster():
    made = compared(THROUGHPUT, history(0.12), NOW)
    assert made.texts[0].endswith("% slower than at 21:59")
    assert not made.great


def test_a_job_that_lost_a_third_wants_attention():
    assert compared(THROUGHPUT, history(0.6), NOW).great


def test_a_steady_job_is_said_to_be_as_it_was_and_its_other_numbers_are_silent():
    steady = history(0.0)
    assert compared(THROUGHPUT, steady, NOW).texts == ("as at 21:59",)
    assert not compared(BY_KEY["step"], steady, NOW).texts
    assert not compared(BY_KEY["comm"], steady, NOW).texts


def test_shares_are_compared_in_points():
    assert compared(BY_KEY["comm"], history(0.4), NOW).texts[0] == "21 points more than at 21:59"


def test_a_young_job_is_not_compared_with_its_own_start_up():
    young = lived.history_of(builders.healthy(), minutes=1.4, slower=0.0)
    for measure in MEASURES:
        assert not any("10 min" in text for text in compared(measure, young, NOW).texts)


def test_nothing_is_compared_before_there_is_something():
    assert not compared(THROUGHPUT, JobHistory(POLICY), NOW).texts


def test_what_was_never_measured_has_no_line():
    assert [one.key for one in measured(history(0.0), NOW)] == [
        "throughput",
        "step",
        "step_most",
        "comm",
        "loader",
    ]
    assert "gpu_power" in [one.key for one in measured(lived.history_of(gpus.on_gpus()), NOW)]


@pytest.mark.parametrize(("minutes", "seconds"), [(0.5, 60), (1.5, 120), (4, 300), (14, 600)])
def test_lines_show_what_is_known_and_at_most_ten_minutes(minutes, seconds):
    assert span_ns(lived.history_of(builders.healthy(), minutes), NOW) == seconds * SECOND


@pytest.mark.parametrize(
    ("highest", "top"), [(5.1, 6.0), (0.9, 1.0), (0.0, 1.0), (233.0, 300.0), (1000.0, 1000.0)]
)
def test_the_scale_of_an_area_ends_at_a_round_number(highest, top):
    assert scale_top(THROUGHPUT, highest) == pytest.approx(top)


def test_noise_is_a_flat_line_and_shares_stay_within_the_whole():
    low, high = scale_range(THROUGHPUT, [5.0, 5.1, None])
    assert high - low == pytest.approx(0.2 * 5.1)
    assert scale_range(BY_KEY["gpu"], [0.99, 1.0]) == pytest.approx((0.8, 1.0))
    assert scale_range(BY_KEY["loader"], [0.01]) == pytest.approx((0.0, 0.2))


def test_what_the_program_counts_is_reported_with_the_time_of_the_end():
    told = TrainingProgress(
        "hf-trainer", 1200, 10_000, 3.2, 10, "train", 41.0, loss=2.31, eta_s=600
    )
    assert progress_facts(replace(builders.healthy(), progress=told)) == (
        "step 1,200 of 10,000",
        "epoch 3.2 of 10",
        "training",
        "41 samples/s",
        "loss 2.31",
        "10 min left",
        "done at 22:23",
    )
    ended = replace(builders.healthy(), progress=told, live=False)
    assert progress_facts(ended) == ("step 1,200 of 10,000", "epoch 3.2 of 10")


def test_samples_a_second_have_a_line_where_the_program_counts_them():
    told = replace(builders.healthy(), progress=TrainingProgress("tqdm", samples_per_s=41.0))
    assert "samples" in [one.key for one in measured(lived.history_of(told), NOW)]


def test_the_job_says_since_when_it_runs_and_when_it_stepped_last():
    snapshot, _ = builders.hang()
    assert job_facts(snapshot, lived.history_of(snapshot)) == ("started 3 min ago",)
    healthy = builders.healthy()
    assert job_facts(healthy, lived.history_of(healthy))[1] == "last step < 2 s ago"
