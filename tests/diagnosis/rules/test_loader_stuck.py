"""The worker that must deliver the next batch: dead, stopped, in a lock, or only slow."""

from dataclasses import replace

import pytest

from ddtop.model.kernel_wait import wait_of
from ddtop.wire.records import ProcessState
from tests.diagnosis.rules.loader_stuck import starving
from tests.jobs import replace_loader

STUCK, ABSENT = "loader-stuck", "not-in-collective"


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
