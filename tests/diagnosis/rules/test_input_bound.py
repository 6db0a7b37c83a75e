"""The ranks make progress, and wait for data most of their time."""

import pytest

from ddtop.policy import POLICY
from ddtop.wire.records import Feed, Waited
from tests.diagnosis.rules.input_bound import loading
from tests.jobs import replace_loader


def all_wait_for_a_batch(job, seconds):
    """No rank trains for this long. Then the batch arrives."""
    for _ in range(2 * seconds):
        for rank in job.ranks:
            rank.trains = False
            rank.loader = replace_loader(
                rank.loader, wait_total_ns=rank.loader.wait_total_ns + 500_000_000
            )
        job.passes(0.5)
    job.goes_on()


def test_ranks_that_mostly_wait_for_data_are_input_bound_and_the_setting_is_named():
    """GPU at 30 %, "PyTorch is slow": the cause is num_workers=1."""
    finding = loading().trains(15).finds("warning", "input-bound", 0, 1, 2, 3)

    assert finding.summary == (
        "ranks 0-3 spend 70% of the time waiting for data (num_workers=1, prefetch_factor=2,"
        " pin_memory=False)"
    )
    assert finding.advice.startswith("raise num_workers")


def test_without_workers_the_advice_is_to_have_some():
    job = loading(workers=0, depth=None, capacity=None, workers_alive=None)

    assert "num_workers=0: the rank loads its data itself" in job.trains(15).finding().summary


@pytest.mark.parametrize("share", [0.0, 0.2, 0.38])
def test_below_the_share_it_is_silent(share):
    assert loading(share).trains(30).ever() == []


def test_batches_that_lie_ready_are_not_what_it_waits_for():
    assert loading(depth=8, capacity=8, workers=4).trains(30).ever() == []


def test_an_epochs_first_batch_with_its_worker_start_is_no_evidence():
    """Starting 16 workers takes 5 s, once per epoch. After that the queue is never empty."""
    job = loading(share=0.0).trains(20)
    all_wait_for_a_batch(job, 5)

    assert job.trains(20).ever() == []


@pytest.mark.parametrize("start_s", [6, 8, 9, 12])
def test_a_long_wait_for_the_first_batch_is_no_rhythm_in_the_steps_after_it(start_s):
    """Workers need 9 s to start, and each quarter of the window has a part of that wait."""
    job = loading(share=0.0)
    for _ in range(2):
        job.trains(6)
        all_wait_for_a_batch(job, start_s)

    assert job.trains(12).ever() == []


def test_with_less_than_eight_seconds_seen_it_is_silent():
    assert loading().trains(7).ever() == []


@pytest.mark.parametrize("limits", [{"input-bound.window_s": 3600}, {"input-bound.steps": 10_000}])
def test_so_long_and_so_many_steps_must_be_seen_as_the_policy_says(limits):
    job = loading().trains(15)
    job.policy = POLICY.with_limits(limits)

    assert job.kinds() == []


def test_a_loader_that_prefetches_nothing_is_judged_by_the_waits_alone():
    assert loading(depth=None, capacity=None).trains(15).finding().kind == "input-bound"


def test_one_of_four_batches_that_is_ready_does_not_feed_a_rank():
    assert loading(depth=1, capacity=4).trains(15).finding().kind == "input-bound"


@pytest.mark.parametrize(
    "waits", [{"activity": "loader", "waits_on": "DataLoader"}, {"waits_on": "socket"}]
)
def test_in_a_hang_it_does_not_stand_beside_the_cause(waits):
    job = loading().trains(15)
    job.ranks[0].stands_at("fetch", **waits)
    job.others_wait(0)

    assert job.passes(15).kinds() == [("critical", "not-in-collective", (0,))]


def test_one_rank_alone_is_named_alone():
    """The file server of one node is slow."""
    job = loading(0.1)
    job.ranks[2].loader_share = 0.8
    finding = job.trains(15).finding()

    assert finding.ranks == (2,)
    assert finding.summary.startswith("rank 2 spends 80% of the time waiting for data")


def alternates(job, cycles, train_s=11, validate_s=3):
    """The training loader is slow; the validation in between has one that keeps up."""
    for _ in range(cycles):
        for rank in job.ranks:
            rank.loader_share = 0.7
        job.trains(train_s)
        for rank in job.ranks:
            rank.loader_share = 0.0
        job.trains(validate_s)


def test_a_validation_in_between_does_not_make_it_come_and_go():
    """The finding appeared six times a minute, though the loader was slow in every epoch."""
    job = loading()
    alternates(job, 5)
    stood = [bool(verdict.findings) for verdict in job.verdicts()]

    assert stood[stood.index(True) :] == [True] * (len(stood) - stood.index(True))


def test_a_loader_that_keeps_up_again_is_no_bottleneck_half_a_minute_later():
    job = loading().trains(15)
    for rank in job.ranks:
        rank.loader_share = 0.0

    assert job.trains(45).kinds() == []


def test_of_two_loaders_the_one_that_is_waited_for_is_named_with_its_own_settings():
    """The current loader is the one that validates. The waits were for the other one."""
    job = loading(workers=0, waited=Waited("Tokens", 3, 4, True, feeds=True))

    assert job.trains(15).finding().summary == (
        "ranks 0-3 spend 70% of the time waiting for data of Tokens, which feeds the training "
        "(num_workers=3, prefetch_factor=4, pin_memory=True)"
    )


@pytest.mark.parametrize(
    ("source", "group", "found"),
    [
        ("batch", "0", []),
        ("optimizer", "0", [("warning", "input-bound", (0, 1, 2, 3))]),
        ("batch", None, [("warning", "input-bound", (0, 1, 2, 3))]),
    ],
    ids=["it goes on in the middle of an epoch", "it trains", "it only predicts"],
)
def test_batches_that_are_thrown_away_before_the_first_step_feed_no_training(source, group, found):
    feed = Feed("DistributedSampler", "BatchSampler", "Images", False, group=group)
    job = loading(0.98, feed=feed)
    for rank in job.ranks:
        rank.says = {"iteration_source": source}
    job.trains(15)

    assert job.kinds() == found
