"""`Job.apply`: any order of the ranks' records is the same, and absurd records are refused."""

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtop.model.facts import State
from ddtop.model.job import HOSTS_MAX, WORLD_MAX, Job
from ddtop.model.memory import GROUPS_KEPT
from ddtop.policy import POLICY
from ddtop.wire.records import Command, Exit, Group, Groups, HostState, ProcessState, Reply
from tests.jobs import FakeJob, unix_ns


def applied(records, name="train-47"):
    job = Job(name, POLICY)
    for envelope, record in records:
        job.apply(envelope, record)
    return job


def busy_job():
    """A job in which events of every kind have happened."""
    job = FakeJob(4, hosts=2).trains(4)
    job.ranks[1].raises("ValueError", "bad")
    job.ranks[2].stands_at("fetch")
    job.others_wait(2)
    job.passes(4)
    job.ranks[1].ends(1)
    return job.passes(2)


BUSY = busy_job()
SENDERS = sorted({(envelope.sender, envelope.rank) for envelope, _ in BUSY.records}, key=str)


@settings(max_examples=60)
@given(st.data())
def test_any_order_of_the_ranks_gives_the_same_snapshot(data):
    """Only the records of one sender are in order, Hello first."""
    seed = data.draw(st.integers(0, 2**32))
    chooser = random.Random(seed)
    queues = [
        [item for item in BUSY.in_order() if (item[0].sender, item[0].rank) == sender]
        for sender in SENDERS
    ]
    hellos = [queue.pop(0) for queue in queues if queue[0][0].kind == "Hello"]
    chooser.shuffle(hellos)
    mixed = []
    while any(queues):
        mixed.append(chooser.choice([queue for queue in queues if queue]).pop(0))

    found = applied(hellos + mixed).snapshot(unix_ns(BUSY.now))

    assert facts_of(found) == facts_of(BUSY.snapshot())


def facts_of(snapshot):
    return (
        snapshot.ranks,
        snapshot.groups,
        snapshot.waits,
        snapshot.blames,
        snapshot.ended,
        snapshot.hosts,
    )


def test_waits_are_in_the_order_of_the_ranks():
    """The first wait gives a finding its group, its op and its sequence number."""
    hellos = [item for item in BUSY.in_order() if item[0].kind == "Hello"]
    found = applied([*reversed(hellos), *BUSY.in_order()]).snapshot(unix_ns(BUSY.now))

    assert found.waits == BUSY.snapshot().waits


@settings(max_examples=30)
@given(st.randoms(use_true_random=False))
def test_records_in_any_order_raise_nothing(chooser):
    mixed = list(BUSY.records)
    chooser.shuffle(mixed)

    assert applied(mixed).snapshot(unix_ns(BUSY.now)).world_size <= 4


def test_the_same_records_twice_change_nothing():
    """A viewer that joins gets history that overlaps with live records."""
    once, twice = applied(BUSY.in_order()), applied(BUSY.in_order() + BUSY.in_order())

    assert twice.snapshot(unix_ns(BUSY.now)) == once.snapshot(unix_ns(BUSY.now))


def test_an_older_record_changes_nothing():
    job = FakeJob(2).trains(5)
    before = job.snapshot()
    job.ranks[0].iteration = 1
    job.say(job.ranks[0].state(), job.ranks[0], at_s=1.25)
    late = job.records.pop()

    assert (
        applied([*job.in_order(), late]).snapshot(unix_ns(job.now)).ranks[0].progress.iteration
        == before.ranks[0].progress.iteration
    )


def test_none_is_not_zero():
    """A rank that had not counted an iteration was shown with iteration 0, the lowest of all."""
    job = FakeJob(2)
    job.ranks[0].iteration = None
    job.ranks[1].iteration = 0
    for rank in job.ranks:
        rank.trains = False

    ranks = job.passes(1).snapshot().ranks

    assert [rank.progress.iteration for rank in ranks] == [None, 0]
    assert [rank.loader.report for rank in ranks] == [None, None]
    assert [rank.loader.wait_ratio for rank in ranks] == [None, None]


def test_before_the_second_look_ratios_are_unknown():
    rank = FakeJob(1).passes(0.5).snapshot().ranks[0]

    assert (rank.process.cpu_ratio, rank.process.working) == (None, None)
    assert (rank.comm.wait_ratio, rank.process.rss_bytes) == (None, None)


def test_a_rank_that_was_never_seen_is_missing_and_not_silent():
    job = FakeJob(3, absent=[1]).passes(1)

    assert [rank.state for rank in job.snapshot().ranks] == [
        State.RUNNING,
        State.MISSING,
        State.RUNNING,
    ]
    assert job.snapshot().reporting == 2
    assert job.snapshot().rank(17).state is State.MISSING


def test_a_rank_that_stops_reporting_is_silent_and_its_last_report_stays():
    job = FakeJob(2).trains(5)
    job.ranks[1].reports = False
    job.passes(5)

    rank = job.snapshot().ranks[1]

    assert (rank.state, rank.progress.iteration, rank.agent.report_age_s) == (State.SILENT, 50, 5.0)
    assert job.snapshot().reporting == 1


def test_each_state_has_its_word():
    job = FakeJob(6).trains(5)
    starting, joining, waiting, stopped, exited, killed = job.ranks
    starting.phase, starting.standings = "starting", {}
    joining.is_in_init()
    waiting.waits_in()
    stopped.is_stopped()
    exited.ends(0)
    killed.ends(signal=9)

    assert [rank.state.value for rank in job.passes(2).snapshot().ranks] == [
        "starting", "joining", "blocked", "stopped", "exited", "killed",
    ]  # fmt: skip


def test_the_cpu_time_of_the_agent_is_subtracted():
    """A sleeping rank does not count as working because our thread looks at it."""
    job = FakeJob(1)
    rank = job.ranks[0]
    rank.stands_at("fetch")
    rank.cores = 0.06
    for _ in range(10):
        rank._agent_ns += 28_000_000
        job.passes(0.5)

    found = job.snapshot().ranks[0]

    assert found.process.cpu_ratio == pytest.approx(0.0, abs=0.01)
    assert found.process.working is False


# -- attempts, runs, foreign processes


def test_a_restart_begins_anew():
    job = FakeJob(2).trains(5)
    job.ranks[1].ends(signal=9)
    job.restarts()

    snapshot = job.passes(1).snapshot()

    assert (snapshot.attempt, [rank.state for rank in snapshot.ranks]) == (1, [State.RUNNING] * 2)
    assert [rank.pid for rank in snapshot.ranks] == [4900, 4901]
    assert snapshot.notes == ("restarted: attempt 1",)


def test_a_late_record_of_the_last_attempt_is_ignored():
    job = FakeJob(2).trains(2)
    old = job.ranks[0]
    job.restarts()
    job.attempt = 0
    old.raises("ValueError", "the old one")
    job.say(old.state(), old)
    job.attempt = 1

    assert job.passes(1).snapshot().ranks[0].reported.exception is None


def test_a_new_attempt_begins_with_a_hello_and_nothing_else():
    job = FakeJob(2).trains(2)
    job.attempt = 5
    job.say(job.ranks[0].state(), job.ranks[0])

    assert job.snapshot().attempt == 0


def test_the_report_of_another_pid_about_a_rank_is_ignored():
    """A subprocess of rank 0 that inherited RANK=0 must not overwrite what the rank reports."""
    job = FakeJob(1).trains(2)
    job.ranks[0].pid, job.ranks[0].iteration = 9999, 1
    job.say(job.ranks[0].state(), job.ranks[0])
    job.say(Exit(0, 9999, 1, None, False, 0, "pidfd"), job.ranks[0])

    assert (job.snapshot().ranks[0].progress.iteration, job.snapshot().ranks[0].gone) == (20, False)


def test_two_processes_that_claim_one_rank_are_both_known():
    job = FakeJob(2).trains(1)
    first = job.ranks[1].pid
    job.ranks[1].pid = 7777
    job.greet(job.ranks[1])

    rank = job.snapshot().ranks[1]

    assert (rank.pid, rank.claimants.pids) == (first, (7777,))


def test_a_second_claimant_that_is_gone_is_forgotten():
    job = FakeJob(2).trains(1)
    job.ranks[1].pid = 7777
    job.greet(job.ranks[1])
    job.ranks[1].ends(1)

    assert job.snapshot().ranks[1].claimants.pids == ()


def test_a_process_that_called_init_process_group_beats_one_that_only_has_the_variables():
    """A launcher's wrapper has RANK=1; the program that it starts is the rank."""
    job = FakeJob(2)
    job.ranks[1].pid, job.ranks[1].claim = 7777, "init"
    job.greet(job.ranks[1])

    rank = job.passes(1).snapshot().ranks[1]

    assert (rank.pid, rank.claimants.pids, rank.state) == (7777, (), State.RUNNING)


def says_hello(job, pid, claim, **told):
    """A process claims rank 0."""
    rank = job.ranks[0]
    rank.pid, rank.claim, rank.told = pid, claim, told
    job.say(rank.hello(), rank)


def test_a_child_of_a_rank_that_has_joined_is_not_the_rank():
    """A scorer that inherited RANK=0 has called init_process_group too."""
    job = FakeJob(2)
    says_hello(job, 4800, "env", joined=True)
    says_hello(job, 7777, "init", joined=True, above=4800, world_size=1)

    rank = job.snapshot().ranks[0]

    assert (rank.pid, rank.claimants.pids) == (4800, (7777,))


def test_a_child_that_had_its_group_first_is_not_the_rank_once_its_parent_has_joined():
    """The trainer starts its server, waits until it is ready, and joins the job after that."""
    job = FakeJob(2)
    says_hello(job, 7777, "init", joined=True, above=4800, world_size=1)
    assert job.snapshot().ranks[0].pid == 7777

    says_hello(job, 4800, "env", joined=True)
    says_hello(job, 7777, "init", joined=True, above=4800, world_size=1)

    assert job.snapshot().ranks[0].pid == 4800


def test_a_child_takes_the_number_of_a_parent_that_has_left_its_group():
    """Each rank prepares the data in a group, destroys it, and starts the training as its child."""
    job = FakeJob(2)
    says_hello(job, 4800, "env", joined=True)
    says_hello(job, 4800, "env", joined=False)
    says_hello(job, 7777, "init", above=4800)

    assert job.snapshot().ranks[0].pid == 7777


def test_a_child_that_outlives_its_rank_is_not_its_heir():
    job = FakeJob(2)
    says_hello(job, 4800, "init", joined=True)
    says_hello(job, 7777, "init", above=4800)
    job.ranks[0].pid = 4800
    job.passes(1)
    job.ranks[0].ends(0)
    job.passes(1)

    assert (job.snapshot().ranks[0].pid, job.snapshot().ranks[0].gone) == (4800, True)


def test_a_rank_whose_process_ended_may_come_again():
    """A rank without a launcher that was started again by hand after its crash."""
    job = FakeJob(2).trains(1)
    job.ranks[1].ends(1)
    job.ranks[1].pid, job.ranks[1].gone, job.ranks[1].reports = 7777, False, True
    job.greet(job.ranks[1])
    job.passes(1)

    assert (job.snapshot().ranks[1].pid, job.snapshot().ranks[1].gone) == (7777, False)


def test_the_first_exit_of_a_rank_counts():
    job = FakeJob(1).trains(1)
    job.ranks[0].ends(signal=9)
    job.ranks[0].ends(0, later_s=1.0)

    assert job.snapshot().ranks[0].process.exit.signal == 9


# -- absurd input


@pytest.mark.parametrize("size", [WORLD_MAX + 1, 2**40])
def test_an_absurd_world_size_is_refused(size):
    """One flipped bit in a Hello must not make a table of a trillion ranks."""
    job = FakeJob(2)
    job.world_size = size
    job.say(job.ranks[0].hello(), job.ranks[0])

    snapshot = job.snapshot()

    assert (snapshot.world_size, snapshot.garbled) == (2, 1)


@pytest.mark.parametrize("rank", [-1, WORLD_MAX, None])
def test_an_absurd_rank_is_refused(rank):
    job = FakeJob(2)
    job.say(msgspec.structs.replace(job.ranks[0].hello(), rank=rank), job.ranks[0])

    assert (job.snapshot().world_size, job.snapshot().garbled) == (2, 1)


def test_records_of_a_rank_that_never_said_hello_are_ignored():
    job = FakeJob(2, absent=[1])
    job.say(job.ranks[1].state(), job.ranks[1])

    assert job.snapshot().ranks[1].state is State.MISSING


def test_commands_and_replies_are_no_facts():
    job = FakeJob(1)
    job.say(Command("join"), job.ranks[0])
    job.say(Reply("live"), job.ranks[0])

    assert job.snapshot() == FakeJob(1).snapshot()


def test_the_number_of_invented_hosts_is_bounded():
    job = Job("j", POLICY)
    job.hosts = {str(number): (0, HostState("h", 1)) for number in range(HOSTS_MAX)}
    envelope, _ = FakeJob(1).records[0]
    job.apply(msgspec.structs.replace(envelope, sender="one more"), HostState("h", 1))

    assert len(job.hosts) == HOSTS_MAX


def test_what_a_rank_writes_to_is_known_after_looks_that_do_not_say_it():
    job = FakeJob(1).passes(4)
    for at_s, outputs in ((4.2, ("/logs/0", "pipe:[1]")), (4.7, ())):
        process = ProcessState(0, 4800, "R", outputs=outputs)
        job.say(HostState("node0", 4, processes=(process,)), at_s=at_s, sender="node0")

    rank = applied(job.records).snapshot(unix_ns(5)).ranks[0]
    assert rank.process.outputs == ("/logs/0", "pipe:[1]")


def test_an_older_look_at_a_host_changes_nothing():
    job = FakeJob(1).passes(4)
    job.say(
        HostState("node0", 4, processes=(ProcessState(0, 4800, "T"),)), at_s=1.5, sender="node0"
    )

    assert applied(job.records).snapshot(unix_ns(4)).ranks[0].process.report.state == "R"


@pytest.mark.parametrize(("wakes_per_s", "since_s"), [(0.0, 1.0), (40.0, 5.0)])
def test_two_looks_at_different_sleeps_are_no_long_sleep(wakes_per_s, since_s):
    """Most looks at a training find it asleep. Wake-ups between the looks are what counts."""
    job = FakeJob(1)
    job.ranks[0].letter, job.ranks[0].wakes_per_s = "S", wakes_per_s

    found = job.passes(5).snapshot().ranks[0].process.state_since_unix_ns

    assert found == unix_ns(since_s)


def test_a_rank_that_does_not_know_the_members_does_not_hide_them():
    job = FakeJob(2)
    job.groups = {"0": msgspec.structs.replace(job.groups["0"], ranks=())}
    job.greet(job.ranks[1])

    assert job.snapshot().group("0").ranks == (0, 1)


# -- waits


def test_without_a_completed_count_the_open_collective_is_the_last_one_enqueued():
    job = FakeJob(2).trains(5)
    for rank in job.ranks:
        rank.standings["0"].completed = None
    job.ranks[0].waits_in()
    job.ranks[1].stands_at("fetch")

    (wait,) = job.passes(3).snapshot().waits

    assert (wait.rank, wait.seq, wait.behind) == (0, 51, (1,))


def test_the_last_report_of_a_stopped_rank_is_not_a_wait():
    job = FakeJob(2).trains(5)
    job.ranks[0].waits_in()
    job.passes(3)
    job.ranks[0].is_stopped()

    assert job.passes(3).snapshot().waits == ()


def test_groups_that_no_rank_lists_any_more_are_forgotten():
    """A program may make a group in each round and destroy it; a view of it stays open for days."""
    job = FakeJob(2)
    default = Group("0", "default_pg", (0, 1), "gloo")
    for number in range(3 * GROUPS_KEPT):
        for rank in job.ranks:
            job.say(Groups((default, Group(f"{number}g", "round", (0, 1), "gloo"))), rank)
    found = {group.name for group in job.snapshot().groups}

    assert {"0", f"{3 * GROUPS_KEPT - 1}g"} <= found
    assert len(found) <= 2 * GROUPS_KEPT


def test_many_groups_that_a_rank_lists_are_all_kept():
    job = FakeJob(1)
    names = [f"{number}" for number in range(3 * GROUPS_KEPT)]
    job.say(Groups(tuple(Group(name, "", (0,), "gloo") for name in names)), job.ranks[0])

    assert len(job.snapshot().groups) == len(names)


def test_groups_with_absurdly_many_members_are_refused():
    """Each of them is a few bytes on the wire, and a mebibyte in memory."""
    runs = [((first, WORLD_MAX - first, 1),) for first in range(20)]
    job = FakeJob(1)
    groups = tuple(Group(f"{n + 1}", "", (), "gloo", one) for n, one in enumerate(runs))
    job.say(Groups(groups), job.ranks[0])

    assert [group.name for group in job.snapshot().groups] == ["0"]
    assert job.snapshot().garbled == 1
