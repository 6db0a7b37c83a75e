"""Where the awaited rank is instead, as its process, its stacks and the kernel show."""

from __future__ import annotations

import pytest

from ddtop.wire.records import (
    Group,
    Groups,
    Loader,
    OutsideLook,
)
from tests.diagnosis.rules.not_in_collective import hang
from tests.jobs import FakeJob, place, trained, unix_ns
from tests.ranks import Standing


@pytest.mark.parametrize(
    ("cores", "letter", "advice"),
    [(1.0, "R", "call gc.freeze()"), (0.0, "S", "find out why it is stuck at train.py:53")],
)
def test_a_collection_that_sleeps_is_in_a_callback_of_the_program(cores, letter, advice):
    job = hang()
    job.ranks[2].seen_outside = {"gc_since_unix_ns": unix_ns(job.now)}
    job.ranks[2].cores, job.ranks[2].letter = cores, letter

    assert job.passes(70).finding().advice.startswith(advice)


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
    ("waits_on", "does"),
    [("rpc", "waiting for the answer to an RPC"), ("queue", "waiting for a queue")],
)
def test_a_main_thread_that_waits_is_not_called_working_for_the_cpu_of_its_other_threads(
    waits_on, does
):
    """TensorPipe's threads poll shared memory while no answer comes."""
    job = trained(2)
    job.ranks[1].works_at("pull", line=16, waits_on=waits_on)
    job.ranks[1].letter, job.ranks[1].cores = "S", 0.25
    job.others_wait(1)
    finding = job.passes(8).finds("warning", "not-in-collective", 1)

    assert finding.summary.startswith(
        f"rank 1 has been {does} (train.py:16 pull) for 8 s, while its other threads or children"
        " work; "
    )


def test_who_stops_with_data_left_is_told_to_agree_on_the_end():
    """Early stopping ended the training on one rank, whose DataLoader has more batches."""
    job = trained(3)
    job.ranks[2].loader = Loader(workers=2)
    job.ranks[2].leaves()
    job.others_wait(2)
    for rank in job.ranks:
        rank.activity = "backward"
    finding = job.passes(8).finds("critical", "left-early", 2)

    assert finding.advice.startswith("stop on all ranks at the same step")


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


def test_a_rank_whose_collectives_cannot_be_read_is_not_blamed_for_them():
    """Its probe was switched off. The rank had "enqueued #0", and was blamed."""
    job = hang()
    job.ranks[3].comes_back()
    job.ranks[3].standings.clear()
    job.ranks[3].probes_off = ("collectives: AttributeError: no attribute '_world'",)

    assert job.passes(8).finding().ranks == (2,)


def test_where_only_such_a_rank_could_be_behind_nobody_is_blamed_and_that_is_reported():
    job = trained(3)
    job.ranks[2].stands_at("step")
    job.ranks[2].standings.clear()
    job.ranks[2].probes_off = ("collectives: AttributeError: no attribute '_world'",)
    job.others_wait(2)
    job.passes(20)

    assert job.ever() == []
    assert "the collectives of rank 2 are unknown because the probe failed" in job.verdict().calm


def test_a_rank_that_goes_on_in_another_group_works_whatever_its_cpu():
    """Half of the ranks train on in a group of their own while the others are at the barrier."""
    job = hang()
    for _ in range(40):
        job.ranks[2].progress = job.now
        job.passes(0.5)

    assert {severity for severity, _, _ in job.ever()} == {"warning"}


def test_lines_that_trickle_in_through_a_pipe_are_work():
    """33 lines a second from a converter: 30 KB/s are below every I/O threshold."""
    job = hang()
    job.ranks[2].wchan, job.ranks[2].wakes_per_s = "anon_pipe_read", 33.0

    assert {severity for severity, _, _ in job.passes(90).ever()} == {"warning"}


def test_a_rank_that_handles_a_line_from_a_pipe_at_this_moment_works_too():
    """On a busy machine it waits for a CPU after each line, and seldom seems to read."""
    job = hang()
    rank = job.ranks[2]
    rank.wakes_per_s = 33.0
    for number in range(60):
        # It may fall asleep between two reads of /proc.
        rank.letter = "SR"[number // 2 % 2]
        rank.wchan = None if number % 8 > 1 else "anon_pipe_read"
        job.passes(0.5)

    assert {severity for severity, _, _ in job.ever()} == {"warning"}


def test_a_pipe_in_which_nothing_comes_is_none():
    job = hang()
    job.ranks[2].wchan, job.ranks[2].wakes_per_s = "anon_pipe_read", 0.0

    assert job.passes(8).finding().severity == "critical"


def test_a_rank_that_leaves_is_not_judged_before_its_last_report():
    """The page says "exiting", and the numbers are from before the last barrier."""
    job = hang()
    job.ranks[2].works_at("save")
    job.passes(4.5)
    job.ranks[2].seen_outside = {"exiting": True}
    job.passes(1.5)
    job.goes_on()

    assert "left-early" not in {kind for _, kind, _ in job.passes(0.5).ever()}


def test_who_has_never_used_gloo_is_named_to_those_that_wait_for_it_there():
    """Rank 0 validates; the others are in the first object collective of a job on NCCL."""
    job = trained(3)
    job.groups["0/gloo"] = Group("0/gloo", "default_pg (gloo)", (0, 1, 2), "gloo")
    for rank in job.ranks:
        rank.standings["0/gloo"] = Standing()
    job.say(Groups(tuple(job.groups.values())), job.ranks[1])
    for rank in job.ranks[1:]:
        rank.waits_in("all_gather", group="0/gloo")
    job.ranks[0].stands_at("validate")
    finding = job.passes(8).finds("critical", "not-in-collective", 0)

    assert finding.victims == (1, 2)
    assert finding.summary.endswith("ranks 1,2 wait for it in all_gather #1 of default_pg (gloo)")


def test_after_a_short_look_from_outside_nobody_is_said_to_work():
    """A loop that polls sleeps at both looks, and its CPU time is not known yet."""
    job = FakeJob(2)
    waits = OutsideLook("collective", "all_reduce", unix_ns(job.now - 15), True)
    polls = OutsideLook(None, None, unix_ns(job.now), False, apart_looks=30)
    for rank, look in zip(job.ranks, (waits, polls), strict=True):
        rank.says["outside"] = look
        rank.trains = False
    job.ranks[1].place = place("wait_for_licence", "/home/ada/train.py", 9)
    finding = job.passes(1.5).finds("warning", "not-in-collective", 1)

    assert "work" not in finding.summary
    assert "in wait_for_licence (train.py:9)" in finding.summary


def test_a_rank_that_was_last_seen_asleep_before_the_others_waited_is_not_blamed_yet():
    """At load 87 the relay got no CPU for 8 s: the rank had been woken since its last look."""
    job = trained(3)
    job.ranks[1].stands_at("read_batch")
    job.passes(3)
    look, job.look_at_hosts = job.look_at_hosts, lambda: None
    job.others_wait(1)
    job.passes(8)
    assert job.ever() == []

    job.look_at_hosts = look
    assert job.passes(2).kinds() == [("critical", "not-in-collective", (1,))]


@pytest.mark.parametrize(("looked_s", "due"), [(1, False), (3, True)])
def test_a_look_counts_once_the_others_have_waited_for_two_seconds(looked_s, due):
    job = trained(3)
    job.ranks[1].stands_at("read_batch")
    job.passes(3)
    job.others_wait(1)
    job.passes(looked_s)
    job.look_at_hosts = lambda: None

    assert [one.due for one in job.passes(8 - looked_s).snapshot().blames] == [due]
