"""Hosts, their clocks and the lives of a job follow the policy."""

import pytest

from ddtop.model.arrivals import findings_of
from ddtop.model.job import Job
from ddtop.model.memory import Rounds
from ddtop.wire.records import Group
from tests.arriving import answers, entered
from tests.jobs import unix_ns
from tests.second_policy import Case
from tests.spread import SpreadJob, skewed


def seen(job, policy):
    job.policy = policy
    return job.snapshot()


def cut(seconds, waits_after_s=None):
    """No record of node1 arrives. The ranks train on, for some seconds or all the time."""
    job = SpreadJob(4, 2).trains(4)
    job.goes_silent("node1")
    if waits_after_s is not None:
        job.passes(waits_after_s)
        job.others_wait(2, 3)
        seconds -= waits_after_s
    return job.passes(seconds)


def node1(job, policy):
    (found,) = [one for one in seen(job, policy).seen if one.host == "node1"]
    return found


def quiet(policy):
    return node1(cut(5), policy).quiet


def lost_while_the_hub_is_silent(policy):
    job = cut(12)
    job.goes_silent("node0")
    job.passes(5)
    job.look_at_hosts()
    return node1(job, policy).lost


def completes(waits_after_s):
    """Whether collectives with its ranks completed long after the host was last heard."""

    def says(policy):
        return node1(cut(14, waits_after_s), policy).completing_unix_ns is not None

    return says


def unheard_when_its_host_is_back(policy):
    job = cut(5)
    job.comes_back("node1")
    job.ranks[2].reports = False
    job.passes(2)
    return seen(job, policy).ranks[2].agent.unheard


def host_of_a_rank_that_two_claim(policy):
    """Another process on node0 reports that it is rank 3 while node1 is silent."""
    job = cut(5)
    job.host_of_rank[3], job.ranks[3].pid = "node0", 9999
    job.greet(job.ranks[3])
    job.passes(1)
    return seen(job, policy).ranks[3].host


def told_late_s(policy):
    """How far a rank's and the job's reports are off if the host's clock is 30 ms behind."""
    job = SpreadJob(4, 2).trains(4)
    model = Job(job.name, policy)
    for envelope, record in skewed(job.in_order(), {"node1": 0.03}):
        model.apply(envelope, record)
    snapshot = model.snapshot(unix_ns(job.now))
    heard = snapshot.ranks[2].agent.heard_unix_ns
    return (round((unix_ns(job.now) - heard) / 1e9, 3), round(snapshot.watched_s - job.now, 3))


def takes(rank, number):
    """Ranks 2 and 3 need 60 ms more than the others."""
    return 40.0 + (rank * 7 + number) % 5 + (60.0 if rank > 1 else 0.0)


def read(times, policy, errors_ms):
    rounds = Rounds()
    for one in answers(times, hosts=("a", "a", "b", "b"), errors_ms=errors_ms):
        rounds.add(one)
    group = Group("0", "default_pg", (0, 1, 2, 3), "gloo")
    return findings_of(rounds, [group], lambda _: False, policy)[-1]


def late_across_hosts(policy):
    times = entered(4, 60, takes)
    return [one.ranks for one in read(times, policy, {"a": 0.0, "b": 12.0}).late]


def hosts_left_out(policy):
    """Rank 2 alone is late; its own host and the others are compared."""
    times = entered(4, 60, lambda rank, number: takes(rank, number) - (rank == 3) * 60.0)
    late = read(times, policy, {"a": 0.0, "b": 12.0}).late
    return [(one.waiters, one.hosts, one.hosts_apart) for one in late]


def balanced_together(policy):
    times = entered(4, 60, lambda rank, number: 40.0 + (rank * 7 + number) % 5)
    return [one.ranks for one in read(times, policy, {"a": 0.0, "b": 0.1}).balances]


def process_of_an_earlier_life(policy):
    """Pids that claim rank 3: a process of the previous life sends Hello once more."""
    job = SpreadJob(4, 2).trains(4)
    old = job.ranks[3]
    hello = old.hello()
    job.goes_silent("node1")
    for rank in job.ranks[:2]:
        rank.ends(1)
    job.begins_again({"node0": (0, 1, 2, 3)}, 4, counts=["node0"])
    job.trains(4)
    job.comes_back("node1")
    job.host_of_rank[3] = "node1"
    now, job.begun_s = job.begun_s, 0.0
    job.say(hello, old)
    job.begun_s, job.host_of_rank[3] = now, "node0"
    job.trains(1)
    return seen(job, policy).ranks[3].claimants.pids


CASES = [
    Case("quiet", "hosts.host_quiet_s", 10.0, quiet, True, False),
    Case("the hub too", "hosts.host_quiet_s", 10.0, lost_while_the_hub_is_silent, False, True),
    Case("what completes", "hosts.host_quiet_s", 10.0, completes(6), True, False),
    Case("what completes soon", "hosts.host_quiet_s", 1.0, completes(2.5), False, True),
    Case("back", "hosts.host_quiet_s", 10.0, unheard_when_its_host_is_back, True, False),
    Case(
        "two claim it", "hosts.host_quiet_s", 10.0, host_of_a_rank_that_two_claim, "node0", "node1",
    ),
    Case("a clock", "clock_matters_s", 0.01, told_late_s, (0.03, 0.03), (0.0, 0.0)),
    Case("late", "clock.error_ratio", 0.1, late_across_hosts, [(2, 3)], []),
    Case(
        "hosts left out", "clock.error_ratio", 0.1, hosts_left_out,
        [((0, 1, 3), 2, 0)], [((3,), 1, 1)],
    ),
    Case(
        "even", "clock.even_ratio", 0.001, balanced_together,
        [(0, 1, 2, 3)], [(0, 1), (2, 3)],
    ),
    Case("a life before", "hosts.restart_apart_s", 60.0, process_of_an_earlier_life, (), (4803,)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=Case.name)
def test_the_policy_says_what_is_true_of_a_host(case):
    assert case.said_by_both() == (case.ours, case.theirs)
