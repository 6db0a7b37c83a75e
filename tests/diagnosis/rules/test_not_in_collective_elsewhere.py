"""Where the awaited rank is instead, as its process, its stacks and the kernel show."""

from __future__ import annotations

import pytest

from tests.jobs import trained


@pytest.mark.parametrize(
    ("waits_on", "seen", "severity"),
    [
        ("child", {"syscall": "wait4", "file": "child 4811"}, "critical"),
        ("child", {"syscall": "wait4", "child_wakes_per_s": 1.2}, "critical"),
        ("child", {"syscall": "wait4", "child_wakes_per_s": 45.0}, "warning"),
        # subprocess.run(capture_output=True) reads the output of its child
        ("child", {"syscall": "poll", "child_wakes_per_s": 45.0}, "warning"),
        # os.waitpid has no library frame
        (None, {"syscall": "wait4", "child_wakes_per_s": 45.0}, "warning"),
        ("socket", {"syscall": "poll", "child_wakes_per_s": 45.0}, "critical"),
        (None, {"syscall": "clock_nanosleep", "child_wakes_per_s": 45.0}, "critical"),
    ],
)
def test_a_rank_works_while_the_child_for_which_it_waits_runs(waits_on, seen, severity):
    """A scorer that computes a little at a time uses 2 % of a core."""
    job = trained(2)
    job.ranks[1].stands_at("score", waits_on=waits_on)
    job.ranks[1].seen_outside = seen
    job.others_wait(1)

    assert job.passes(12).kinds() == [(severity, "not-in-collective", (1,))]


@pytest.mark.parametrize(
    ("seen", "text", "advice"),
    [
        ({"syscall": "read", "file": "stdin"},
         "waiting for input on its standard input in ask (train.py:7)", "nobody can answer"),
        ({"syscall": "wait4", "file": "child 4811"},
         "waiting for its child (pid 4811) in ask (train.py:7)", "ddtop stacks --rank 1"),
        ({"syscall": "flock", "file": "/x.lock"},
         "waiting for a lock on /x.lock in ask (train.py:7)", "find out why it is stuck"),
    ],
)  # fmt: skip
def test_the_advice_fits_what_it_waits_for(seen, text, advice):
    job = trained(2)
    job.ranks[1].stands_at("ask", line=7)
    job.ranks[1].seen_outside = seen
    job.others_wait(1)
    finding = job.passes(8).finding()

    assert finding.summary.startswith(f"rank 1 has been {text} for 8 s")
    assert advice in finding.advice


@pytest.mark.parametrize(
    ("lost", "text"),
    [
        (
            (2,),
            ("rank 2 is in a communication call, but it is not known which ranks it waits for"),
        ),
        (
            (1, 2),
            (
                "ranks 1,2 are in a communication call, but it is not known which ranks they"
                " wait for"
            ),
        ),
    ],
)
def test_calls_that_cannot_be_judged_are_reported_in_the_number_of_their_ranks(lost, text):
    job = trained(3)
    for rank in (0, 1, 2):
        job.ranks[rank].stands_at("step")
    for rank in lost:
        job.ranks[rank].stands_at("step", waits_on="collective")

    assert text in job.passes(20).verdict().calm


def test_where_only_such_a_rank_could_be_behind_nobody_is_blamed_and_that_is_reported():
    job = trained(3)
    job.ranks[2].stands_at("step")
    job.ranks[2].standings.clear()
    job.ranks[2].probes_off = ("collectives: AttributeError: no attribute '_world'",)
    job.others_wait(2)
    job.passes(20)

    assert job.ever() == []
    assert "the collectives of rank 2 are unknown because the probe failed" in job.verdict().calm


@pytest.mark.parametrize(("looked_s", "due"), [(1, False), (3, True)])
def test_a_look_counts_once_the_others_have_waited_for_two_seconds(looked_s, due):
    job = trained(3)
    job.ranks[1].stands_at("read_batch")
    job.passes(3)
    job.others_wait(1)
    job.passes(looked_s)
    job.look_at_hosts = lambda: None

    assert [one.due for one in job.passes(8 - looked_s).snapshot().blames] == [due]
