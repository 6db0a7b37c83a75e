"""The worker that must deliver the next batch: dead, stopped, in a lock, or only slow."""

from dataclasses import replace

import pytest

from ddtop.model.kernel_wait import wait_of
from ddtop.wire.records import ProcessState
from tests.diagnosis.rules.loader_stuck import C10D, dump, starving
from tests.jobs import replace_loader, trained

STUCK, ABSENT = "loader-stuck", "not-in-collective"


def test_a_worker_in_a_lock_after_fork_is_named_and_not_its_rank_s_own_place():
    """OpenCV's pool was forked with its mutex held, on one rank of three."""
    job = starving().passes(3)
    dump(
        job,
        job.ranks[1],
        ("__getitem__", "/home/ada/data.py", 40, True),
        ("main", "/home/ada/train.py", 53, True),
    )
    finding = job.passes(5).finds("critical", STUCK, 1)

    assert finding.victims == (0, 2)
    assert finding.summary == (
        "rank 1 has been in the DataLoader (train.py:53 main) for 8 s: its worker pid 9001,"
        " which must deliver the next batch, is waiting for a lock and makes no progress (at"
        " __getitem__ data.py:40); ranks 0,2 wait for it in all_reduce #106 of default_pg"
    )
    assert (
        "2/2 workers alive; worker pid 9001 must deliver the next batch: state S"
        in finding.evidence[0]
    )
    assert any("worker 9001's stack: __getitem__ data.py:40" in line for line in finding.evidence)
    assert "multiprocessing_context='spawn'" in finding.advice
    assert "the process group times out in" in finding.advice
    assert (finding.op, finding.group) == ("all_reduce", "0")


@pytest.mark.parametrize("begins", ["_bootstrap", "BaseProcess._bootstrap"])
def test_what_a_forked_worker_has_from_its_rank_is_not_the_datasets_line(begins):
    """The program's only frames on that stack are from before the fork."""
    job = starving().passes(3)
    dump(
        job,
        job.ranks[1],
        ("read_table", "/usr/lib/python3/dist-packages/datasets/arrow.py", 7, False),
        (begins, "/usr/lib/python3.11/multiprocessing/process.py", 314, False),
        ("main", "/home/ada/train.py", 53, True),
        method="py-spy",
    )
    finding = job.passes(5).finding()

    assert "(at read_table arrow.py:7)" in finding.summary
    assert any(line == "worker 9001's stack: read_table arrow.py:7" for line in finding.evidence)


def test_all_workers_of_all_ranks_in_a_collective_are_critical_though_nobody_waits_for_a_rank():
    job = trained(2)
    for rank in job.ranks:
        rank.waits_for_batch(wchan="futex_wait_queue", locked=2)
    job.passes(3)
    for rank in job.ranks:
        dump(job, rank, ("all_reduce", C10D, 2810, False), ("get", "/home/ada/data.py", 40, True))

    assert job.passes(5).kinds() == [("critical", STUCK, (0, 1))]


@pytest.mark.parametrize(
    ("seconds", "found"),
    [(5, []), (9, [("critical", STUCK, (1,))]), (20, [("critical", STUCK, (1,))])],
)
def test_it_is_named_within_ten_seconds_and_never_called_by_another_kind_before(seconds, found):
    """If a verdict changes after a second, people read it twice and trust it less."""
    assert starving().passes(seconds).ever() == found


@pytest.mark.parametrize(
    ("worker", "says", "advice"),
    [
        ({"state": "T", "wchan": "do_signal_stop"}, "is stopped (SIGSTOP or Ctrl-Z)",
         "kill -CONT 9001"),
        ({"state": "t", "wchan": "ptrace_stop"}, "is held by a debugger", "kill -CONT"),
        ({"state": "Z", "wchan": None}, "is dead", "dmesg"),
        ({"state": None, "wchan": None}, "is dead", "dmesg"),
        ({"state": "D", "wchan": "rpc_wait_bit_killable"},
         "is waiting for a file server and makes no progress", "fix"),
        ({"state": "D", "wchan": None}, "is in uninterruptible sleep and makes no progress",
         "fix the file server"),
        ({"wchan": "wait_woken"}, "is waiting on a socket and makes no progress", "timeout"),
        ({"wchan": "hrtimer_nanosleep"}, "is asleep and makes no progress", "timeout"),
        ({"wchan": None}, "which must deliver the next batch, makes no progress;", "timeout"),
    ],
)  # fmt: skip
def test_what_keeps_the_worker_is_reported(worker, says, advice):
    finding = starving(**worker).passes(9).finds("critical", STUCK, 1)

    assert says in finding.summary
    assert advice in finding.advice


def test_the_lock_of_a_futex_is_not_a_child():
    """The kernel's wchan is futex_do_wait for one of them and do_wait for the other."""
    assert wait_of(ProcessState(None, 1, "S", "futex_do_wait")) == ("lock", "waiting for a lock")
    assert wait_of(ProcessState(None, 1, "S", "do_wait")) == (
        "child",
        "waiting for a child process",
    )


# -- near misses: it works


@pytest.mark.parametrize(
    "worker",
    [
        {"cores": 0.5, "wchan": None, "state": "R"},
        {"io_per_s": 10**6, "wchan": "folio_wait_bit"},
        {"wakes_per_s": 40, "wchan": "wait_woken"},
    ],
    ids=["decoding", "reading a slow disk", "downloading"],
)
def test_a_worker_that_is_only_slow_is_a_warning_of_the_old_kind(worker):
    """A video takes nine seconds because the file server is slow today."""
    assert starving(**worker).passes(25).ever() == [("warning", ABSENT, (1,))]


def test_a_worker_that_polls_with_a_sleep_does_not_work():
    """`while not path.exists(): time.sleep(0.05)` wakes often and makes no progress."""
    job = starving(wakes_per_s=20, wchan="hrtimer_nanosleep")

    assert job.passes(12).ever() == [("critical", STUCK, (1,))]


def test_a_worker_that_works_now_and_then_is_not_stuck():
    """A burst comes every three seconds, and the time limit begins anew with each."""
    job = starving()
    for _ in range(8):
        job.ranks[1].worker = {"workers_cpu_ns": 0.5 * 10**9}
        job.passes(0.5)
        job.ranks[1].worker = {"workers_cpu_ns": 0}
        job.passes(2.5)

    assert {kind for _, kind, _ in job.ever()} == {ABSENT}
    assert {severity for severity, _, _ in job.ever()} == {"warning"}


def test_a_worker_that_stops_working_becomes_stuck():
    """It decoded for ten seconds, then it waited for a lock."""
    job = starving(cores=0.5, wchan="futex_do_wait").passes(10)
    job.ranks[1].worker, job.ranks[1].cores = {"workers_cpu_ns": 0}, 0.004
    job.passes(9)

    assert job.kinds() == [("critical", STUCK, (1,))]
    assert job.ever() == [("warning", ABSENT, (1,)), ("critical", STUCK, (1,))]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            {"workers": 0, "owing_state": None, "workers_alive": None, "owing_wchan": None},
            id="a dataset in the rank itself",
        ),
        pytest.param({}, id="a torch that keeps its tasks under other names"),
    ],
)
def test_where_no_worker_can_be_named_it_stays_not_in_collective(change):
    job = starving()
    rank = job.ranks[1]
    rank.loader, rank.worker = replace_loader(rank.loader, owing_pid=None, **change), {}

    assert job.passes(9).kinds() == [("critical", ABSENT, (1,))]


def test_a_stopped_rank_explains_its_own_wait():
    job = starving()
    job.ranks[1].is_stopped()

    assert job.passes(9).kinds() == [("critical", "rank-stopped", (1,))]


# -- no rank waits for it


def test_a_stuck_worker_that_nobody_waits_for_is_a_warning_after_thirty_seconds():
    """Rank 0 waits for its evaluation's batch; the others validate too and are busy."""
    job = trained(3)
    job.ranks[0].waits_for_batch(wchan="wait_woken")
    for number in (1, 2):
        job.ranks[number].works_at("validate")
    job.passes(28)
    assert job.ever() == []
    finding = job.passes(5).finds("warning", STUCK, 0)

    assert finding.victims == ()


def test_all_ranks_in_loaders_whose_workers_are_all_in_locks_is_critical_soon():
    """All deadlocked at the first batch, and no rank waited in a collective."""
    job = trained(2)
    for rank in job.ranks:
        rank.waits_for_batch()
    finding = job.passes(9).finds("critical", STUCK, 0, 1)

    assert (
        "the workers that must deliver the next batches (pids 9000, 9001) are waiting for a lock"
        " and make no progress" in finding.summary
    )


def test_all_ranks_in_loaders_that_wait_for_something_outside_is_no_more_than_a_warning():
    """Trainers wait for rollouts: their workers read a socket, or wait behind the one that does."""
    job = trained(2)
    job.ranks[0].waits_for_batch(wchan="futex_do_wait", locked=1)
    job.ranks[1].waits_for_batch(wchan="wait_woken")
    job.passes(28)
    assert job.ever() == []

    assert {severity for severity, _, _ in job.passes(10).ever()} == {"warning"}


@pytest.mark.parametrize("state", ["T", "Z", None])
def test_a_stopped_or_dead_worker_is_critical_though_nobody_waits_yet(state):
    job = trained(3)
    job.ranks[2].waits_for_batch(state=state, wchan=None)
    for number in (0, 1):
        job.ranks[number].works_at("validate")

    assert job.passes(9).kinds() == [("critical", STUCK, (2,))]


@pytest.mark.parametrize(("waits_on", "kind"), [("queue", STUCK), ("stdin", ABSENT)])
def test_of_a_loader_of_another_thread_only_a_main_thread_in_queue_get_may_be_stuck(waits_on, kind):
    """The other thread fetches ahead, and the worker keeps both."""
    job = starving()
    job.ranks[1].stands_at("main", activity="other", waits_on=waits_on)

    assert job.passes(9).ever() == [("critical", kind, (1,))]


# -- the workers do not end


def test_an_iterator_that_was_left_behind_closed_says_nothing_of_a_rank_that_is_elsewhere():
    """The program holds a reference to it, and one of its workers hangs in its exit."""
    job = starving(wchan="wait_woken")
    rank = job.ranks[1]
    rank.loader = replace_loader(
        rank.loader, waiting_since_unix_ns=None, closing=True, workers_cpu_ns=0
    )
    rank.stands_at("save", "/home/ada/train.py", 88)

    assert job.passes(9).kinds() == [("critical", ABSENT, (1,))]


def test_a_viewer_that_joins_later_reads_the_same():
    job = starving().passes(25)
    seen = [
        replace(one, summary="", evidence=(), advice="") for one in job.verdicts(0.0)[-1].findings
    ]

    for joined in (12.0, 16.0, 20.0, 30.0):
        assert [
            replace(one, summary="", evidence=(), advice="")
            for one in job.verdicts(joined)[-1].findings
        ] == seen
