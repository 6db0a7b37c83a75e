"""How far a training is, as one line."""

import pytest

from ddtop.wire.records import PHASES, TrainingProgress
from ddtop.words.sentences import PHASE_WORDS, number, progress_text


def test_all_that_is_known_is_one_line():
    told = TrainingProgress(
        "hf-trainer", 1200, 10_000, 3.2, 10.0, "train", 41.0, 20_992.0, 2.31, 1e-4, 5400.0
    )

    assert progress_text(told) == (
        "step 1,200 of 10,000, epoch 3.2 of 10, training, 41 samples/s, 20,992 tokens/s,"
        " loss 2.31, lr 0.0001, 1 h 30 min left"
    )


def test_what_nobody_counts_is_left_out():
    assert progress_text(TrainingProgress("torch", phase="checkpoint")) == "saving a checkpoint"
    assert progress_text(TrainingProgress("user", 3, phase="warm-up")) == "step 3, in phase warm-up"


@pytest.mark.parametrize(
    ("value", "text"), [(1.9996, "2.00"), (0.5, "0.500"), (41.0, "41.0"), (412.6, "413")]
)
def test_a_loss_keeps_its_three_digits(value, text):
    assert progress_text(TrainingProgress("user", loss=value)) == f"loss {text}"


def test_every_phase_has_words():
    assert set(PHASE_WORDS) == set(PHASES)


@pytest.mark.parametrize(
    ("value", "text"),
    [(float("nan"), "nan"), (float("inf"), "inf"), (0.0123456, "0.0123"), (12_480.4, "12,480")],
)
def test_numbers_have_three_digits(value, text):
    assert number(value) == text
