"""Two threads of a rank use one group: only collectives open at the same time count."""

import msgspec
import pytest

from ddtop.wire.records import StackFrame, Stacks, ThreadStack
from tests.jobs import FakeJob, trained, unix_ns

KIND = "threads-share-group"
C10D = "/usr/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


def by(rank, *threads, group="0"):
    """The collective that each thread has open: (id, name) or None."""
    condition = rank.standings[group]
    for at, thread in enumerate(threads):
        found = {"thread_id": thread[0], "thread": thread[1]} if thread is not None else {}
        condition.open[at] = msgspec.structs.replace(condition.open[at], **found)


def both_wait(*threads, world_size=2):
    """Each rank has two open collectives, which these threads have called."""
    job = FakeJob(world_size).trains(10)
    for rank in job.ranks:
        rank.waits_in("all_gather")
        rank.waits_in("all_reduce")
        by(rank, *threads)
    return job.passes(3)


def kinds(job):
    return {kind for _, kind, _ in job.ever()}


def test_two_threads_with_open_collectives_of_one_group_are_named():
    """A logger's thread gathered metrics on the default group."""
    finding = both_wait((7, "MainThread"), (8, "metrics")).finds("warning", KIND, 0, 1)

    assert finding.summary == (
        "2 threads of ranks 0,1 communicate on default_pg at the same time (rank 0: MainThread"
        " in all_gather #101 and metrics in all_reduce #102): their order may differ from rank"
        " to rank"
    )
    assert finding.evidence[1] == (
        "rank 1 has these calls open on default_pg: all_gather #101 by MainThread, all_reduce"
        " #102 by metrics"
    )
    assert "dist.new_group" in finding.advice


def test_what_it_leads_to_is_told_by_it_and_not_by_the_network():
    finding = both_wait((7, "MainThread"), (8, "metrics")).passes(9).finds("critical", KIND, 0, 1)

    assert "which has not completed for" in finding.summary
    assert "network" not in finding.summary
    assert "dist.new_group" in finding.advice


def test_a_mismatch_of_two_threads_blames_no_rank_that_is_only_in_the_minority():
    """On rank 0 the step came first, on the others the checkpoint did. Each has both threads."""
    job = trained(3)
    for rank in job.ranks:
        order = ("barrier", "all_gather") if rank.number == 0 else ("all_gather", "barrier")
        names = {"barrier": (7, "MainThread"), "all_gather": (8, "checkpoint")}
        for op in order:
            rank.waits_in(op, ((4,),) if op == "all_gather" else ())
        by(rank, *(names[op] for op in order))
    finding = job.passes(6).finds("critical", KIND, 0, 1, 2)

    assert "the ranks made different calls at #101 of default_pg" in finding.summary
    assert "dist.new_group" in finding.advice


def test_a_rank_whose_second_thread_is_not_in_a_call_yet_is_a_victim():
    """On rank 0 the logger was first, on rank 1 the step was."""
    job = trained(2)
    job.ranks[0].waits_in("all_gather", ((4,),))
    job.ranks[0].waits_in("all_reduce")
    by(job.ranks[0], (8, "metrics"), (7, "MainThread"))
    job.ranks[1].waits_in("all_reduce")
    by(job.ranks[1], (7, "MainThread"))
    first = job.passes(6).finds("critical", KIND, 0)

    assert first.victims == (1,)


def test_a_mismatch_in_another_group_stays_what_it_is():
    """Two threads share the default group and both wait; rank 1 reduces less in its own group."""
    job = trained(2)
    job.new_group("1", 0, 1)
    for rank in job.ranks:
        rank.waits_in("all_reduce", ((4 + rank.number,),), group="1")
        by(rank, (7, "MainThread"), group="1")

    assert [kind for _, kind, _ in job.passes(6).kinds()] == ["collective-mismatch"]


# -- near misses


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((7, "MainThread"), (7, "MainThread")),
        ((7, "MainThread"), (9, "pt_autograd_0")),
        ((9, "pt_autograd_0"), (10, "pt_autograd_1")),
        ((7, "MainThread"), (11, "native")),
        ((7, "MainThread"), (11, None)),
        (None, None),
    ],
    ids=[
        "one thread",
        "forward and backward",
        "two devices",
        "a hook in C++",
        "a thread without a name",
        "an old torch",
    ],
)
def test_other_thread_ids_mean_nothing(first, second):
    """DDP broadcasts from the thread of forward, and reduces from autograd's."""
    assert KIND not in kinds(both_wait(first, second))


def test_a_group_for_each_thread_is_how_it_should_be():
    job = trained(2)
    job.new_group("1", 0, 1)
    for rank in job.ranks:
        rank.waits_in("all_gather")
        rank.waits_in("all_reduce", group="1")
        by(rank, (7, "MainThread"))
        by(rank, (8, "metrics"), group="1")
    job.passes(10)

    assert KIND not in kinds(job)


def test_threads_that_take_turns_are_not_both_open():
    """The checkpoint's thread gathers while the main thread waits for that thread."""
    job = trained(2)
    for rank in job.ranks:
        rank.passes_through("all_gather")
        rank.waits_in("all_reduce")
        by(rank, (8, "checkpoint"))
    job.passes(10)

    assert KIND not in kinds(job)


# -- by a dump, where the recorder does not know threads


def thread(function, name="metrics", main=False, file=C10D):
    frames = (
        StackFrame("wrapper", C10D.replace("distributed_c10d", "c10d_logger"), 83),
        StackFrame(function, file, 3000),
    )
    return ThreadStack(
        (*frames, StackFrame("work", "/home/ada/train.py", 9, True)), name, 7 if main else 8, main
    )


def dumped(*threads, groups=()):
    job = trained(2)
    for name in groups:
        job.new_group(name, 0, 1)
    for rank in job.ranks:
        rank.waits_in("all_gather")
        for name in groups:
            rank.waits_in("all_reduce", group=name)
    job.passes(2)
    for rank in job.ranks:
        job.say(
            Stacks("a", rank.number, rank.pid, unix_ns(job.now), "agent", threads, automatic=True),
            rank,
        )
    return job.passes(2)


def test_two_threads_inside_collectives_in_one_dump_are_named():
    job = dumped(thread("all_gather", "MainThread", True), thread("all_gather_object"))
    finding = next(one for one in job.verdict().findings if one.kind == KIND)

    assert finding.ranks == (0, 1)
    assert "MainThread in all_gather and metrics in all_gather_object" in finding.summary


@pytest.mark.parametrize(
    "other",
    [
        thread("recv"),
        thread("new_group"),
        thread("all_reduce", "pt_autograd_0"),
        thread("all_reduce", file="/home/ada/metrics.py"),
    ],
    ids=["point-to-point", "a new group", "autograd", "the program's own function of that name"],
)
def test_one_thread_in_a_collective_and_another_elsewhere_is_healthy(other):
    assert KIND not in kinds(dumped(thread("all_gather", "MainThread", True), other))


def test_with_two_groups_pending_a_dump_does_not_tell_whose_is_whose():
    """The asynchronous checkpoint has a group of its own."""
    job = dumped(thread("all_gather", "MainThread", True), thread("all_reduce"), groups=("1",))

    assert KIND not in kinds(job)
