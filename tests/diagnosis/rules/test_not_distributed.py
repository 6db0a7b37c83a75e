"""Ranks that torchrun started and that train alone. And programs that are meant to do so."""

import pytest

from ddtop.diagnosis.rules.data import NotDistributed
from ddtop.policy import POLICY
from ddtop.wire.records import Feed, Loader, RpcState
from tests.jobs import FakeJob

KIND = "not-distributed"


def alone(size=2, **variables):
    """Each rank makes ten steps a second, and no process group."""
    job = FakeJob(size)
    job.groups = {}
    for rank in job.ranks:
        rank.standings, rank.phase = {}, "starting"
        rank.told["environment"] = {"TORCHELASTIC_RUN_ID": "none"} | variables
        rank.says["trains"] = "1f2e3d4c"
        job.greet(rank)
    return job


def test_ranks_that_each_train_the_same_model_alone_are_a_warning():
    """accelerate finds no GPU and says DistributedType.NO on both ranks."""
    job = alone().trains(40)
    finding = job.finds("warning", KIND, 0, 1)

    assert finding.summary.endswith("none has called init_process_group, though WORLD_SIZE is 2")
    assert job.verdict().health == "warning"
    assert "mute train-47 not-distributed" in finding.advice


def test_a_warm_up_before_the_process_group_is_none():
    assert alone().trains(POLICY.of(NotDistributed).alone_s - 2).ever() == []


@pytest.mark.parametrize(
    "changes", [{"not-distributed.alone_s": 3600.0}, {"not-distributed.alone_steps": 10_000}]
)
def test_the_policy_says_from_when_ranks_that_train_alone_are_named(changes):
    job = alone()
    job.policy = POLICY.with_limits(changes)

    assert job.trains(40).kinds() == []


def test_it_ends_once_they_have_a_process_group():
    job = alone().trains(40)
    for rank in job.ranks:
        rank.says["trains"], rank.phase = None, "running"

    assert job.trains(3).kinds() == []


def one_differs(job, **more):
    job.ranks[1].says |= more
    job.trains(60)
    return job.ever()


def test_another_model_setting_or_seed_is_meant():
    """A sweep, or an ensemble: torchrun numbers the members."""
    assert one_differs(alone(), trains="00000000") == []


def test_another_dataset_is_meant():
    """One model for each part of the data."""
    job = alone()
    for rank in job.ranks:
        feed = Feed("RandomSampler", "BatchSampler", "Fold", True, 100, first=f"fold{rank.number}")
        rank.loader = Loader(0, feed=feed)

    assert job.trains(60).ever() == []


@pytest.mark.parametrize("more", [{"trains": None}, {"rpc": RpcState("worker1", 1)}])
def test_a_rank_that_does_not_train_or_has_another_way_to_the_others_is_meant(more):
    """The first only predicts or reads data."""
    assert one_differs(alone(), **more) == []


def test_ranks_of_another_launcher_may_use_a_library_that_is_not_known():
    """Horovod under mpirun makes no process group of torch."""
    job = alone()
    for rank in job.ranks:
        rank.told["environment"] = {"OMPI_COMM_WORLD_RANK": str(rank.number)}
        job.greet(rank)

    assert job.trains(60).ever() == []


def test_replicas_with_a_role_meet_in_another_way():
    job = alone()
    for rank in job.ranks:
        rank.told["role"] = "torchft replica group 1 of 2"
        job.greet(rank)

    assert job.trains(60).ever() == []
