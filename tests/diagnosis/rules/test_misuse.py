"""Misuse that the reports show by the way: samplers, epochs, large transfers."""

import pytest

from ddtop.wire.records import SYMMETRIC
from tests.diagnosis.rules.misuse import (
    PLAIN,
    SHUFFLED,
    fed,
    transferring,
)


@pytest.mark.parametrize(
    "other",
    [
        {"first": ["a", "b", "c", "d"]},
        {"length": [1024, 1024, 1024, 1000]},
        {"dataset": ["A", "B", "A", "A"]},
        {"plain": False},
        {"length": None},
        {"steps": 3},
        {"steps": [100, 100, 100, 0]},
        {"group": None},
        {"group": "tp"},
        {"holds": False},
        {"taken": 400},
        {"sampler": "SequentialSampler"},
        {"sampler": "SequentialSampler", "batch": [1, 2, 3, 4]},
    ],
    ids=str,
)
def test_shards_other_samplers_validation_and_other_groups_are_left_in_peace(other):
    assert fed(**(PLAIN | other)).trains(10).ever() == []


@pytest.mark.parametrize(
    "other",
    [{"epochs": 1}, {"epochs": 5, "epoch": 4}, {"epochs": 2, "same_epoch": True, "steps": 2}],
)
def test_a_first_epoch_or_one_that_was_set_is_left_in_peace(other):
    assert fed(**(SHUFFLED | other)).trains(10).ever() == []


# -- transfer-bound


@pytest.mark.parametrize(
    "more",
    [
        {"waits": 0.45, "blocked": 0.45},
        {"blocked": 0.5},
        {"call_bytes": 1e5},
        {"call_bytes": None},
        {"kind": SYMMETRIC},
        {"lateness_ms": 60.0},
        {"backend": "nccl"},
        {"age_s": 8},
    ],
    ids=str,
)
def test_a_large_model_on_a_good_network_and_small_or_late_collectives_are_left_in_peace(more):
    assert transferring(**more).ever() == []
