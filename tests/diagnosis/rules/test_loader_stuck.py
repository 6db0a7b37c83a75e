"""The worker that must deliver the next batch: dead, stopped, in a lock, or only slow."""

from dataclasses import replace

import pytest

from ddtop.model.kernel_wait import wait_of
from ddtop.wire.records import ProcessState
from tests.diagnosis.rules.loader_stuck import dump, starving
from tests.jobs import replace_loader, trained

STUCK, ABSENT = "loader-stuck", "not-in-collective"


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


# -- no rank waits for it


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
