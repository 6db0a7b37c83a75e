"""Misuse that the reports show by the way: samplers, epochs, backends, many small collectives."""

import pytest

from ddtop.wire.records import ROOTED, SYMMETRIC, Spot
from tests.diagnosis.rules.misuse import (
    PLAIN,
    communicating,
    fed,
    on_gloo,
    taking_turns,
    taking_turns_at_cpus,
    transferring,
    transferring_beside_others,
)
from tests.jobs import FakeJob

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


def test_nccl_without_a_gpu_is_the_wrong_backend_and_the_crash_stands_first():
    job = FakeJob(2).trains(2)
    for rank in job.ranks:
        rank.raises("RuntimeError", "Distributed package doesn't have NCCL built in")
        rank.ends(1)

    assert [kind for _, kind, _ in job.passes(3).kinds()] == ["rank-crashed", "wrong-backend"]


def test_gradients_on_gpus_that_go_through_gloo_are_reported():
    finding = on_gloo().trains(10).finds("warning", "wrong-backend", 0, 1)

    assert finding.summary == (
        "ranks 0,1 move gradients of 400 MiB from GPU to GPU through gloo in each step,"
        " although this torch has NCCL"
    )


@pytest.mark.parametrize(
    "given",
    [{"gloo_bytes": None}, {"gloo_bytes": 1 << 20}, {"uuids": ("a", "a")}, {"uuids": ("a", None)}],
)
def test_gloo_beside_nccl_small_gradients_and_ranks_of_one_gpu_are_no_misuse(given):
    """A second group of gloo is for barriers; and NCCL refuses two ranks on one GPU."""
    assert on_gloo(**given).trains(10).ever() == []


def test_before_the_first_step_nothing_has_gone_through_gloo():
    job = on_gloo()
    for rank in job.ranks:
        rank.trains = False

    assert "wrong-backend" not in [kind for _, kind, _ in job.passes(5).ever()]


# -- sync-bound


def test_many_small_collectives_a_step_are_sync_bound():
    finding = communicating(0.8).finds("warning", "sync-bound", 0, 1, 2, 3)

    assert finding.summary == (
        "ranks 0-3 spend 80% of the time in communication: 20 collectives of default_pg in each"
        " step of 50 ms"
    )


def test_many_small_broadcasts_a_step_are_sync_bound_too():
    """Each rank sends the rows that it has read to the others, row by row."""
    assert communicating(0.8, kind=ROOTED).kinds() == [("warning", "sync-bound", (0, 1, 2, 3))]


def test_who_communicates_too_often_is_shown_the_line_that_does():
    spots = (Spot("average", "/home/ada/metrics.py", 14, 62), Spot("step", "/home/ada/t.py", 9, 30))

    finding = communicating(0.8, says={"spots": spots, "spots_samples": 100}).finding()

    assert "rank 0: 62% in average (metrics.py:14), 30% in step (t.py:9)" in finding.evidence


def test_a_healthy_job_on_nccl_with_many_buckets_is_not_sync_bound():
    """The host runs ahead: more is enqueued than completed at nearly every look."""
    assert communicating(0.95, backend="nccl").ever() == []


def test_waiting_for_each_other_is_not_communication():
    """Lengths vary, so each time another rank is the last."""
    assert communicating(0.8, lateness_ms=4.0).ever() == []


@pytest.mark.parametrize("more", [{"per_step": 2}, {"waits": 0.3}, {"kind": SYMMETRIC}])
def test_few_collectives_little_time_in_them_and_sharded_layers_are_what_training_costs(more):
    assert communicating(**({"waits": 0.8} | more)).ever() == []


def test_a_loop_that_makes_no_steps_is_not_judged():
    assert communicating(0.8, says={"step_ms": None}).ever() == []


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


# -- imbalance


def test_steps_that_wait_for_another_rank_each_time_are_an_imbalance_and_nobody_is_blamed():
    finding = taking_turns().finds("info", "imbalance")

    assert finding.victims == (0, 1, 2, 3)
    assert finding.summary == (
        "each step waits for some rank, and each time for another: ranks 0-3 lose 40% of the time,"
        " 30 ms of each 80 ms step"
    )
    assert "no rank was the last in more than 25% of 40 steps" in finding.evidence[0]
    assert not any("loader" in line for line in finding.evidence)


@pytest.mark.parametrize("more", [{"lateness_ms": 2.0}, {"age_s": 10}, {"waits": 0.1}], ids=str)
def test_small_differences_and_waits_that_the_samples_do_not_find_are_no_imbalance(more):
    assert taking_turns(**more).ever() == []


def test_where_ranks_take_turns_at_the_cpus_chance_picks_the_last():
    assert taking_turns_at_cpus(0.05).kinds() == [("info", "imbalance", ())]
    assert taking_turns_at_cpus(0.3).kinds() == []


def test_a_validation_at_every_tenth_step_is_no_imbalance():
    """The others wait for rank 0 then, as the program intends."""
    job = taking_turns(lateness_ms=lambda rank, number: 800.0 * (rank == 0 and number % 10 == 0))

    assert job.ever() == []
