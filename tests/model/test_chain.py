"""What follows from the wait chains of all ranks together."""

import msgspec

from ddtop.diagnosis.kinds import Kind
from ddtop.wire.records import (
    CALL,
    CHILD,
    CONNECTION,
    ENDS_AGAIN,
    FILE_LOCK,
    ITSELF,
    LOCK,
    OBJECT,
    PIPE,
    PROCESS,
    TASK,
    THREAD,
    TIMED,
    LastException,
    Link,
    Place,
    RpcState,
    Sleeper,
    StackFrame,
    Stacks,
    ThreadStack,
)
from tests.jobs import trained
from tests.ranks import unix_ns

ASLEEP = Sleeper("S", "hrtimer_nanosleep", "clock_nanosleep")
SAVES = Place("save", "/home/ada/train.py", 31)
CIRCLE = (
    Link(THREAD, who="saver", place=SAVES),
    Link(LOCK, "self.lock", "MainThread", place=SAVES, circle=True),
)


def stands(*links, in_kernel=(), beside=()):
    """Rank 1 waits for this while the others wait for it, and for those `beside` it."""
    job = trained()
    job.ranks[1].stands_at("drain")
    job.ranks[1].says = {"chain": links}
    job.ranks[1].seen_outside["chain"] = in_kernel
    job.others_wait(1, *beside)
    return job


def found(job, after_s=10):
    (finding,) = job.passes(after_s).verdict().findings
    return finding


def test_threads_of_a_rank_that_wait_for_each_other_are_a_circle():
    finding = found(stands(*CIRCLE))

    assert (finding.kind, finding.ranks, finding.severity) == (Kind.WAIT_CYCLE, (1,), "critical")
    assert (
        "which waits for `self.lock`, which its main thread has in save (train.py:31): a circle"
        in finding.summary
    )
    assert finding.advice.startswith("they wait for each other: release that lock")


HANDLES = (
    Link(ITSELF, who="handler", place=SAVES),
    Link(LOCK, "self.lock", "MainThread", place=SAVES, circle=True),
)


def served_by(pid):
    return (Link(CONNECTION, "127.0.0.1:4455", "python", pid, ASLEEP, does="ESTABLISHED"),)


def test_a_rank_that_waits_for_its_own_thread_over_a_socket_is_a_circle():
    job = stands(*HANDLES)
    job.ranks[1].seen_outside["chain"] = served_by(job.ranks[1].pid)
    finding = found(job)

    assert (finding.kind, finding.ranks) == (Kind.WAIT_CYCLE, (1,))
    assert (
        "waits for an answer of 127.0.0.1:4455, which its thread handler serves, which waits for"
        " `self.lock`, which its main thread has in save (train.py:31): a circle" in finding.summary
    )


def test_a_thread_that_might_answer_says_nothing_of_a_wait_for_another_process():
    finding = found(stands(*HANDLES, in_kernel=served_by(4712)))
    alone = found(stands(*HANDLES))

    assert finding.kind == Kind.NOT_IN_COLLECTIVE
    assert "127.0.0.1:4455, which python (pid 4712) serves" in finding.summary
    assert "handler" not in finding.summary + alone.summary


def test_an_await_with_a_time_limit_is_waited_for():
    at = Place("ask", "/home/ada/train.py", 12)
    timed = found(stands(Link(TASK, "await wait_for(x, 3)", "Task-1", place=at, does=TIMED)))
    other = found(stands(Link(TASK, "await x", "Task-1", place=at)))

    assert (timed.severity, timed.patience.because) == ("warning", "its wait has a time limit")
    assert other.severity == "critical"


def dumped(job, number, *others):
    """The stacks of a rank: its main thread in the program, and other threads."""
    main = ThreadStack((StackFrame("drain", "/home/ada/train.py", 7),), main=True)
    threads = tuple(ThreadStack((frame,), name="other") for frame in others)
    rank = job.ranks[number]
    job.say(Stacks("a", number, rank.pid, unix_ns(job.now), "agent", (main, *threads)), rank)


READS = Link(PIPE, "/d/a", who="train.py", pid=4800, process=ASLEEP, does="writes", rank=0)
WORKS = StackFrame("feed", "/home/ada/feed.py", 3)


def test_a_pipe_that_a_waiting_rank_should_write_is_a_circle():
    job = stands(in_kernel=(READS,)).passes(8)
    dumped(job, 0)
    finding = found(job, 2)

    assert finding.kind == Kind.WAIT_CYCLE
    assert "which rank 0 writes, which waits for rank 1: a circle" in finding.summary
    assert finding.advice.startswith("they wait for each other: write what the other one waits for")


def test_a_chain_that_is_older_than_the_wait_at_its_end_is_no_circle():
    """That rank may have had the lock, given it away, and come to the collective."""
    job = stands(in_kernel=(READS,)).passes(2)
    job.ranks[1].seen_outside["chain_unix_ns"] = unix_ns(job.now - 4)
    job.passes(6)
    dumped(job, 0)
    old = found(job, 2)
    job.ranks[1].seen_outside["chain_unix_ns"] = unix_ns(job.now)
    fresh = found(job, 2)

    assert (old.kind, fresh.kind) == (Kind.NOT_IN_COLLECTIVE, Kind.WAIT_CYCLE)


HAS = Link(FILE_LOCK, "/d/index.lock", who="train.py", pid=4801, process=ASLEEP, rank=2)


def test_a_rank_that_waits_for_another_rank_which_works_is_not_blamed_beside_it():
    """They take a lock in turns."""
    job = stands(in_kernel=(HAS,), beside=(2,))
    job.ranks[2].works_at("add")
    (finding,) = job.passes(10).verdict().findings

    assert (finding.ranks, finding.severity) == ((2,), "warning")


def test_ranks_that_wait_for_each_other_are_both_blamed():
    job = stands(in_kernel=(HAS,), beside=(2,))
    job.ranks[2].stands_at("drain")
    job.ranks[2].seen_outside["chain"] = (msgspec.structs.replace(HAS, rank=1),)
    (finding,) = job.passes(10).verdict().findings

    assert (finding.ranks, finding.severity) == ((1, 2), "critical")


def test_where_another_thread_of_that_rank_might_write_it_is_none():
    job = stands(in_kernel=(READS,)).passes(8)
    unknown = found(job, 1)
    dumped(job, 0, WORKS)
    known = found(job, 1)

    assert [one.kind for one in (unknown, known)] == [Kind.NOT_IN_COLLECTIVE] * 2
    assert ": a circle" not in unknown.summary + known.summary


def test_a_process_that_the_program_names_and_the_kernel_shows_is_one_step():
    polls = Link(FILE_LOCK, "hub.lock", pid=88)
    finding = found(stands(polls, in_kernel=(Link(PROCESS, who="get.py", pid=88, process=ASLEEP),)))

    assert "the lock on hub.lock, which get.py (pid 88) has, which is asleep" in finding.summary


def test_what_the_kernel_says_comes_before_the_text_of_the_call():
    call = Link(OBJECT, "tiles.get()", place=SAVES, does=CALL)
    child = Link(CHILD, who="cat", pid=88, process=ASLEEP)

    assert "waits in `tiles.get()`" in found(stands(call)).summary
    assert "tiles.get()" not in found(stands(call, in_kernel=(child,))).summary


def test_a_chain_goes_on_at_the_process_of_another_host():
    asks = Link(CONNECTION, "10.0.0.7:443", does="ESTABLISHED")
    served = Link(CONNECTION, "10.0.0.7:443", "rank.py", 88, ASLEEP, host="node7")
    job = stands(in_kernel=(asks,))
    alone = found(job)
    job.host_says["served"] = ((served,), ())
    finding = found(job)

    assert "it waits for an answer of 10.0.0.7:443;" in alone.summary
    assert (
        "10.0.0.7:443, which rank.py (pid 88 on node7) serves, which is asleep" in finding.summary
    )
    assert finding.advice.startswith("repair rank.py (pid 88 on node7)")


def test_a_wait_for_an_rpc_goes_on_at_the_only_rank_that_runs_one():
    job = trained()
    job.ranks[1].stands_at("drain", waits_on="rpc")
    job.ranks[1].says = {"rpc": RpcState("w1", 1, waits=1)}
    job.ranks[2].says = {"rpc": RpcState("w2", 2, serves=1)}
    job.others_wait(1)
    dumped(job.passes(8), 2, WORKS)
    finding = found(job, 2)

    assert "it waits for a call that rank 2 runs, which is in feed (feed.py:3)" in finding.summary
    assert finding.advice.startswith("see why rank 2 does not go on: it is in feed (feed.py:3)")


def test_of_ranks_that_run_rpcs_the_one_is_meant_that_waits_for_none():
    """Rank 1 waits for rank 3, which runs a call of rank 2, which waits for rank 1."""
    job = trained()
    job.ranks[1].stands_at("drain", waits_on="rpc")
    job.ranks[1].says = {"rpc": RpcState("w1", 1, waits=1, serves=1)}
    job.ranks[2].says = {"rpc": RpcState("w2", 2, serves=1)}
    job.others_wait(1)
    dumped(job.passes(8), 2, WORKS)

    assert "it waits for a call that rank 2 runs" in found(job, 2).summary


def test_a_pool_whose_workers_end_as_they_start_does_not_work():
    """Its children use the CPU all the time."""
    again = Link(CHILD, who="its worker", pid=88, does=ENDS_AGAIN)
    job = stands(again)
    job.ranks[1].cores = 0.6
    job.passes(10)

    assert job.finding().severity == "critical"


def test_where_two_ranks_run_rpcs_none_of_them_is_meant():
    job = trained()
    job.ranks[1].stands_at("drain", waits_on="rpc")
    job.ranks[1].says = {"rpc": RpcState("w1", 1, waits=1)}
    for number in (2, 3):
        job.ranks[number].says = {"rpc": RpcState("w", number, serves=1)}
    job.others_wait(1)

    assert "waits for a call" not in found(job).summary


def test_the_exception_of_a_thread_that_has_ended_comes_first():
    job = trained()
    job.ranks[1].stands_at("next_batch", waits_on="queue")
    at = Place("fill", "/home/ada/feed.py", 9)
    job.ranks[1].exception = LastException("KeyError", "60", unix_ns(job.now), at, "feeder")
    job.others_wait(1)
    finding = found(job)

    assert finding.summary.startswith("rank 1's thread feeder raised KeyError: 60 (fill, feed.py:9")
    assert finding.advice.startswith("repair KeyError in fill (feed.py:9), with which its thread")
