"""Misuse that the reports show by the way: samplers, epochs, large transfers."""

import pytest

from ddtop.wire.records import SYMMETRIC
from tests.diagnosis.rules.misuse import (
    PLAIN,
    fed,
    transferring,
    transferring_beside_others,
)

SHUFFLED = {
    "sampler": "DistributedSampler",
    "batch_sampler": "BatchSampler",
    "dataset": "Rows",
    "plain": False,
    "epoch": 0,
}


def test_ranks_that_all_read_the_whole_dataset_are_reported():
    finding = fed(**PLAIN).trains(10).finds("warning", "sampler-not-distributed", 0, 1, 2, 3)

    assert finding.summary == (
        "ranks 0-3 each read all 4,096 samples of the same Rows with a RandomSampler: an epoch"
        " takes 4 times as long as it should"
    )


def test_in_the_same_order_the_first_batches_are_the_evidence():
    job = fed(**(PLAIN | {"sampler": "SequentialSampler", "batch": 77, "holds": False}))

    assert job.trains(10).finding().kind == "sampler-not-distributed"


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


def test_a_second_epoch_in_the_same_order_is_reported():
    job = fed(**SHUFFLED, epochs=2, same_epoch=True)
    finding = job.trains(10).finds("warning", "epoch-not-set", 0, 1, 2, 3)

    assert (
        "in pass 2 over the data (Rows), but the loader's DistributedSampler is still at epoch 0"
        in finding.summary
    )


@pytest.mark.parametrize(
    "other",
    [{"epochs": 1}, {"epochs": 5, "epoch": 4}, {"epochs": 2, "same_epoch": True, "steps": 2}],
)
def test_a_first_epoch_or_one_that_was_set_is_left_in_peace(other):
    assert fed(**(SHUFFLED | other)).trains(10).ever() == []


# -- transfer-bound


def test_transfers_behind_backward_are_only_reported_where_they_cannot_be_hidden():
    assert transferring(blocked=0.0).ever() == []
    assert transferring(0.95, blocked=0.0).kinds() == [("warning", "transfer-bound", (0, 1, 2, 3))]


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


def test_transfers_that_lack_cpus_are_not_the_fault_of_the_network():
    assert transferring_beside_others(1.0).kinds() == [("warning", "transfer-bound", (0, 1, 2, 3))]
    assert transferring_beside_others(9.0).kinds() == []
