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


def test_tensor_parallel_ranks_read_the_same_data_by_design():
    """Ranks 0 and 2 average their gradients, and so do 1 and 3, each pair with its own data."""
    job = fed(**PLAIN, group=["a", "b", "a", "b"], first=["x", "x", "y", "y"])
    job.new_group("a", 0, 2)
    job.new_group("b", 1, 3)

    assert job.trains(10).ever() == []


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


def test_a_large_all_reduce_that_takes_most_of_the_step_is_transfer_bound():
    """Nobody is late: the 46 MiB take this long."""
    finding = transferring().finds("warning", "transfer-bound", 0, 1, 2, 3)

    assert finding.summary == (
        "ranks 0-3 spend 80% of the time in transfers, and no rank is late: 45.8 MiB of default_pg"
        " in each step of 80 ms, 715 MiB/s on one host"
    )
    assert "12 collectives a second, of 45.8 MiB" in finding.evidence[1]


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


def test_more_ranks_than_cpus_on_one_host_take_turns_at_the_cpus():
    assert transferring(ranks=5).ever() == []


def test_transfers_that_lack_cpus_are_not_the_fault_of_the_network():
    assert transferring_beside_others(1.0).kinds() == [("warning", "transfer-bound", (0, 1, 2, 3))]
    assert transferring_beside_others(9.0).kinds() == []
