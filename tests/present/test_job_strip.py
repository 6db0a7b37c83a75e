"""The strip of a job's numbers: now against before, in few words."""

import re

import pytest

from ddtop.follow.history import JobHistory
from ddtop.policy import POLICY
from ddtop.present.strip import (
    MEASURES,
    THROUGHPUT,
    compared,
    measured,
    progress_facts,
    span_ns,
    speed_facts,
)
from ddtop.wire.records import TrainingProgress
from tests.ui import builders, gpus, lived
from tests.ui.builders import NOW, SECOND
from tests.ui.changed import replace

BY_LABEL = {one.label: one for one in MEASURES}


def history(slower):
    return lived.history_of(builders.healthy(), slower=slower)


def test_a_slower_job_is_reported_with_the_time_since_when_it_was_faster():
    made = compared(history(0.12), NOW)
    assert made.texts[0].endswith("% slower than at 21:59")
    assert not made.great


def test_a_job_that_lost_a_third_wants_attention():
    assert compared(history(0.6), NOW).great


def test_a_steady_job_is_said_to_be_as_it_was():
    steady = history(0.0)
    assert compared(steady, NOW).texts == ("unchanged since 21:59",)


def test_a_young_job_is_not_compared_with_its_own_start_up():
    young = lived.history_of(builders.healthy(), minutes=1.4, slower=0.0)
    assert not any("10 min" in text for text in compared(young, NOW).texts)


def test_nothing_is_compared_before_there_is_something():
    assert not compared(JobHistory(POLICY), NOW).texts


def test_what_was_never_measured_has_no_line():
    assert [one.label for one in measured(history(0.0), NOW)] == [
        "speed",
        "memory of the largest rank",
    ]
    assert "GPU power" in [one.label for one in measured(lived.history_of(gpus.on_gpus()), NOW)]


@pytest.mark.parametrize(
    ("minutes", "seconds"), [(0.1, 10), (0.4, 24), (1.4, 85), (3.9, 240), (14, 600)]
)
def test_lines_show_what_is_known_and_at_most_ten_minutes(minutes, seconds):
    history = lived.history_of(builders.healthy(), minutes)
    assert span_ns(history, NOW, THROUGHPUT.field) == seconds * SECOND


def test_what_the_program_counts_is_reported_with_the_time_of_the_end():
    told = TrainingProgress(
        "hf-trainer", 1200, 10_000, 3.2, 10, "train", 41.0, loss=2.31, eta_s=600
    )
    assert progress_facts(replace(builders.healthy(), progress=told)) == (
        "12% of 10,000 steps",
        "epoch 3.2 of 10",
        "training",
        "41 samples/s",
        "loss 2.31",
        "10 min left",
        "done at 22:23",
    )
    ended = replace(builders.healthy(), progress=told, live=False)
    assert progress_facts(ended) == ("12% of 10,000 steps", "epoch 3.2 of 10")
    uncounted = replace(ended, iteration=None)
    assert progress_facts(uncounted)[0] == "step 1,200 of 10,000"


def test_the_speed_is_said_in_all_units_and_a_loss_that_is_no_number_in_none():
    counted = TrainingProgress("tqdm", samples_per_s=5279.3, tokens_per_s=9e4, loss=float("nan"))
    followed = lived.history_of(replace(builders.healthy(), progress=counted), slower=0.0)
    samples, tokens, step = speed_facts(followed.now(NOW))
    assert (samples, tokens) == ("5,279 samples/s", "90,000 tokens/s")
    assert re.fullmatch(r"step 19\d ms, max 20\d", step)
    assert "loss" not in [one.label for one in measured(followed, NOW)]
