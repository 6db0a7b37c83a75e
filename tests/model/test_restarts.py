"""Restarts of a job on several hosts, where each host counts by itself."""

import msgspec
import pytest

from ddtop.model.facts import State
from ddtop.model.job import HOSTS_MAX
from ddtop.model.memory import Clock
from ddtop.wire.records import HostClock, HostState
from tests.jobs import FakeJob
from tests.spread import SpreadJob


def trained(world_size=4, hosts=2):
    return SpreadJob(world_size, hosts).trains(5)


def rows(job):
    """Each rank's host and state."""
    return [(rank.host, rank.state) for rank in job.snapshot().ranks]


def test_one_failed_worker_counts_on_its_own_host_only():
    """The other host has only joined again: its TORCHELASTIC_RESTART_COUNT stays 0."""
    job = trained()
    job.starts_again({"node0": (0, 1), "node1": (2, 3)}, 4, counts=["node0"])
    job.trains(5)

    snapshot = job.snapshot()

    assert rows(job) == [("node0", State.RUNNING)] * 2 + [("node1", State.RUNNING)] * 2
    assert (snapshot.attempt, snapshot.notes) == (1, ("restarted: attempt 1",))
    assert [rank.claimants.hellos for rank in snapshot.ranks] == [()] * 4
    assert job.kinds() == []


def test_where_both_have_failed_both_counts_are_one_restart():
    job = trained()
    job.starts_again({"node0": (0, 1), "node1": (2, 3)}, 4, counts=["node0", "node1"])
    job.trains(5)

    assert job.snapshot().notes == ("restarted: attempt 1",)
    assert rows(job) == [("node0", State.RUNNING)] * 2 + [("node1", State.RUNNING)] * 2


@pytest.mark.parametrize("counts", [["node0"], ["node1"], ["node0", "node1"]])
def test_the_order_of_the_hellos_does_not_matter(counts):
    job = trained()
    job.starts_again({"node1": (2, 3), "node0": (0, 1)}, 4, counts=counts)
    job.trains(5)

    assert job.snapshot().notes == ("restarted: attempt 1",)
    assert rows(job) == [("node0", State.RUNNING)] * 2 + [("node1", State.RUNNING)] * 2
    assert job.kinds() == []


def test_a_second_restart_is_another_though_no_host_has_counted_to_two():
    job = trained()
    job.starts_again({"node0": (0, 1), "node1": (2, 3)}, 4, counts=["node0"])
    job.trains(5)
    job.starts_again({"node0": (0, 1), "node1": (2, 3)}, 4, counts=["node1"])
    job.trains(5)

    assert job.snapshot().notes == ("restarted: attempt 1", "restarted: attempt 2")
    assert rows(job) == [("node0", State.RUNNING)] * 2 + [("node1", State.RUNNING)] * 2


@pytest.mark.parametrize("order", [("node0", "node1"), ("node1", "node0")])
def test_a_rank_that_moved_to_another_host_is_no_duplicate(order):
    job = trained()
    numbers = {"node0": (2, 3), "node1": (0, 1)}
    job.starts_again({host: numbers[host] for host in order}, 4, counts=["node0"])
    job.trains(5)

    assert rows(job) == [("node1", State.RUNNING)] * 2 + [("node0", State.RUNNING)] * 2
    assert [rank.claimants.pids for rank in job.snapshot().ranks] == [()] * 4
    assert job.kinds() == []


def test_a_smaller_world_has_no_rows_for_ranks_that_left():
    job = trained(6, 3)
    job.starts_again({"node0": (0, 1), "node1": (2, 3)}, 4, counts=["node0"])
    job.trains(5)

    snapshot = job.snapshot()

    assert snapshot.world_size == len(snapshot.ranks) == 4
    assert rows(job) == [("node0", State.RUNNING)] * 2 + [("node1", State.RUNNING)] * 2
    assert snapshot.group("0").ranks == (0, 1, 2, 3)


def test_a_host_that_is_down_leaves_the_job_with_the_restart_without_it():
    """No relay reports how its ranks ended. A viewer that comes after the restart sees the same."""
    job = trained(6, 3)
    job.goes_silent("node2")
    for rank in job.ranks[:4]:
        rank.ends(1)
    before = len(job.records)
    last = [item for item in job.records if item[0].sender == "node2"][-8:]
    hellos = [item for item in job.records if item[0].sender == "node2" and item[0].kind == "Hello"]
    job.begins_again({"node0": (0, 1), "node1": (2, 3)}, 4, counts=["node0", "node1"])
    job.trains(12)

    for records in (job.records, [*hellos, *last, *job.records[before:]]):
        job.records = records
        assert job.snapshot().world_size == 4
        assert job.kinds() == []


@pytest.mark.parametrize("reports", [True, False], ids=["Hello and a report", "Hello alone"])
def test_a_process_of_the_life_before_does_not_become_the_rank_again(reports):
    """After a network partition, processes of the job's previous life send Hello once more."""
    job = trained(4, 2)
    old = job.ranks[3]
    hello = old.hello()
    job.goes_silent("node1")
    for rank in job.ranks[:2]:
        rank.ends(1)
    job.begins_again({"node0": (0, 1, 2, 3)}, 4, counts=["node0"])
    job.trains(12)
    job.comes_back("node1")
    job.host_of_rank[3] = "node1"
    now, job.begun_s = job.begun_s, 0.0
    job.say(hello, old)
    if reports:
        job.say(old.state(), old)
    job.begun_s, job.host_of_rank[3] = now, "node0"
    job.trains(3)

    assert rows(job) == [("node0", State.RUNNING)] * 4
    assert [rank.claimants.pids for rank in job.snapshot().ranks] == [()] * 4


def test_equal_pids_and_ranks_in_two_containers_are_two_processes():
    job = FakeJob(2, hosts=2).trains(1)
    first, second = job.ranks
    second.number = 0
    second.pid = first.pid
    job.host_of = lambda rank: "node0" if rank is first else "node1"  # type: ignore[method-assign]
    job.greet(second)

    rank = job.snapshot().ranks[0]

    assert (rank.host, [hello.host for hello in rank.claimants.hellos]) == ("node0", ["node1"])


def test_on_a_single_host_a_rank_that_is_started_again_by_hand_is_no_restart():
    job = FakeJob(1).trains(1)
    job.ranks[0].ends(1)
    job.ranks[0].pid, job.ranks[0].gone, job.ranks[0].reports = 7777, False, True
    job.greet(job.ranks[0])

    snapshot = job.snapshot()

    assert (snapshot.attempt, snapshot.notes, snapshot.ranks[0].pid) == (0, (), 7777)


def test_the_number_of_invented_hosts_is_bounded():
    job = FakeJob(2).model()
    job.attempts = {str(number): (0, 0) for number in range(HOSTS_MAX)}
    job.clocks = {str(number): Clock(0, 0) for number in range(HOSTS_MAX)}
    for envelope, record in SpreadJob(4, 2).records:
        job.apply(msgspec.structs.replace(envelope, sender="one more"), record)
    report = HostState("h", 1, clock=HostClock(5, 5))
    job.apply(msgspec.structs.replace(envelope, sender="one more", kind="HostState"), report)

    assert (len(job.attempts), len(job.clocks)) == (HOSTS_MAX, HOSTS_MAX)


@pytest.mark.parametrize(
    ("before_s", "after_s", "host"), [(5, 1, "node0"), (2, 3, "node0"), (1, 1, "node1")]
)
def test_a_rank_that_another_host_claims_has_moved_there_if_its_own_is_silent(
    before_s, after_s, host
):
    """Its own host is silent for three seconds when the other claim comes, or soon after."""
    job = SpreadJob(4, 2).trains(4)
    job.goes_silent("node1")
    job.passes(before_s)
    job.host_of_rank[3], job.ranks[3].pid = "node0", 9999
    job.greet(job.ranks[3])
    job.passes(after_s)

    assert job.snapshot().ranks[3].host == host
