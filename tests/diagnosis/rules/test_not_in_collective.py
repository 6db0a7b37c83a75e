"""Others wait for a rank: which is blamed, how severely, and which ranks are not."""

from __future__ import annotations

import pytest

from ddtop.wire.records import OpenCall
from tests.diagnosis.rules.late import loads_in_turn
from tests.diagnosis.rules.not_in_collective import hang
from tests.jobs import WORLD, FakeJob, trained, unix_ns


def test_it_is_named_within_ten_seconds_of_the_fault():
    job = hang().passes(8)

    first = next(
        index for index, verdict in enumerate(job.verdicts()) if verdict.health == "critical"
    )

    assert 15.0 < first * 0.5 <= 18.0


def test_a_long_sleep_is_no_pause():
    assert loads_in_turn(3600).passes(8).ever() == [("critical", "not-in-collective", (2,))]


@pytest.mark.parametrize(
    ("moves", "seconds", "severity"),
    [(True, 50, "warning"), (True, 200, "warning"), (False, 8, "critical")],
    ids=["a restore in pieces", "a long one", "no file moves"],
)
def test_a_rank_that_moves_on_in_a_file_works(moves, seconds, severity):
    """8 KB five times a second is less than a rank that works reads, and its CPU time is none."""
    job = trained()
    rank = job.ranks[1]
    rank.stands_at("restore", line=28)
    rank.wchan, rank.wakes_per_s = "hrtimer_nanosleep", 0.0
    if moves:
        rank.says = {"moves_since_unix_ns": unix_ns(job.now)}
    job.others_wait(1)

    assert job.passes(seconds).finding().severity == severity
    if severity == "warning":
        assert job.finding().summary.startswith(
            "rank 1 is still working, in restore (train.py:28), "
        )


def test_send_and_recv_do_not_make_a_rank_look_ahead_of_the_others():
    """gloo counts p2p too: #1203 and #400 were both collective 100."""
    job = FakeJob(2)
    job.ranks[0].standings[WORLD].offset = 800
    job.ranks[0].standings[WORLD].enqueued = job.ranks[0].standings[WORLD].completed = 800
    job.trains(10)
    for rank in job.ranks:
        rank.waits_in()
    job.passes(3)

    assert [wait.behind for wait in job.snapshot().waits] == [(), ()]
    assert [wait.seq for wait in job.snapshot().waits] == [101, 101]


def test_a_rank_whose_agent_never_spoke_is_not_blamed():
    """One node has no ddtop installed, so nothing is known about its ranks."""
    job = FakeJob(4, absent=[3]).trains(10)
    for number in (0, 1, 2):
        job.ranks[number].waits_in()
    job.passes(30)

    assert job.ever() == []
    assert job.verdict().calm == "starting: 3/4 ranks seen, not yet 3"


def test_start_up_of_minutes_is_a_warning_at_most():
    """Importing torch from a cold NFS, then a rendezvous where the last node comes late."""
    job = FakeJob(4)
    for rank in job.ranks:
        rank.trains, rank.phase, rank.standings, rank.iteration = False, "starting", {}, None
        rank.works_at("<module>")
    job.passes(60)
    for rank in job.ranks[:3]:
        rank.is_in_init()

    assert job.passes(120).ever() == [("warning", "late-to-init", (3,))]
    assert (
        job.verdict().calm
        == "starting: 4/4 ranks not in a process group yet, 3 in init_process_group"
    )


def test_a_healthy_job_is_silent_and_says_so():
    job = FakeJob(4).trains(60)

    assert job.ever() == []
    assert (job.verdict().health, job.verdict().headline) == ("ok", "ok: 4/4 moving, watched 60 s")


def test_a_job_that_stands_at_one_place_says_so_in_its_calm_sentence():
    job = trained(2)
    for rank in job.ranks:
        rank.stands_at("<module>")

    assert job.passes(30).verdict().calm == (
        "quiet: no rank has moved for 30 s, and none waits for another in a collective; ranks"
        " 0,1 are in <module> (train.py:40)"
    )


def test_of_idle_ranks_at_several_places_none_is_reported():
    job = trained(2)
    job.ranks[0].stands_at("<module>")
    job.ranks[1].stands_at("serve", line=7)

    assert (
        job.passes(30).verdict().calm
        == "quiet: no rank has moved for 30 s, and none waits for another in a collective"
    )


def test_the_last_rank_of_a_job_that_does_not_end_says_what_it_waits_for():
    """A thread keeps its process alive, and the launcher waits for that process."""
    job = trained(3)
    for rank in (0, 2):
        job.ranks[rank].ends(0)
    job.ranks[1].stands_at("_shutdown", "/usr/lib/python3.11/threading.py", 1590, waits_on="exit")

    assert job.passes(30).ever() == [("warning", "no-progress", (1,))]
    assert (
        "in a collective; rank 1 is waiting at exit for its other threads (threading.py:1590"
        " _shutdown), ranks 0,2 finished" in job.verdict().calm
    )


def test_who_is_missing_in_a_group_that_is_made_by_hand_is_not_known():
    """Two ranks joined the groups of two models in opposite order: neither is at fault alone."""
    job = hang()
    job.ranks[2].stands_at("connect", "/home/ada/train.py", 53, callee="_new_process_group_helper")
    finding = job.passes(30).finds("warning", "not-in-collective", 2)

    assert finding.advice.startswith("it waits for all members of the group that it makes there")
    job.ranks[2].calls = [OpenCall("init_process_group", finding.since_unix_ns)]
    assert job.passes(2).finding().severity == "critical"
