"""The backend fails and no rank ended before: who reports the error is not blamed for it."""

import pytest

from ddtop.wire.records import GroupProgress
from tests.diagnosis.rules.comm_error import BARRIER, TIMED_OUT, fails
from tests.jobs import FakeJob, trained, unix_ns

KIND = "comm-error"


def brief(finding):
    return finding.severity, finding.kind, finding.ranks, finding.victims


def test_a_cut_link_blames_nobody_and_says_what_is_excluded():
    """A switch was restarted, and people read rank 0's traceback for an hour."""
    job = trained(3)
    job.others_wait()
    job.passes(1)
    fails(job, 0, 1, 2)
    finding = job.passes(4).finding()

    assert brief(finding) == ("critical", KIND, (), (0, 1, 2))
    assert finding.summary == (
        "all_reduce #101 of default_pg failed on ranks 0-2: Connection closed by peer"
        " [10.0.0.2]:41233; no rank has crashed or been killed or stopped: check the network,"
        " not the rank that reports the error"
    )
    assert "the peer's address: 10.0.0.2:41233" in finding.evidence
    assert "ip -s link; dmesg on both" in finding.advice


def test_it_stands_while_others_still_wait_for_the_rank_that_reports_it():
    """By its sequence numbers alone it would be the rank that has not joined."""
    job = trained(3)
    job.others_wait()
    job.passes(1)
    fails(job, 1, leaves=False)

    assert job.passes(12).ever() == [("critical", KIND, ())]


def test_a_death_that_is_heard_of_a_second_later_is_the_finding_and_nothing_else_ever_was():
    """The killed rank's host was busy, so its relay reported the end after the peers' errors."""
    job = trained(3)
    fails(job, 0, 1)
    job.ranks[2].gone = True
    job.passes(1)
    job.ranks[2].gone = False
    job.ranks[2].ends(signal=9)

    assert job.passes(5).ever() == [("critical", "rank-killed", (2,))]


@pytest.mark.parametrize("kind", ["ValueError", "ConnectionResetError"])
def test_an_exception_of_the_program_s_own_is_a_crash(kind):
    """An object store reset rank 1's connection; then the peers' backend said the same words."""
    job = trained(3)
    fails(job, 1, kind=kind, text="Connection reset by peer")
    job.passes(0.5)
    fails(job, 0, 2)

    assert job.passes(5).ever() == [("critical", "rank-crashed", (1,))]


def test_an_error_before_the_first_collective_is_no_matter_of_this_rule():
    """connectFullMesh failed in init_process_group."""
    job = FakeJob(2)
    for rank in job.ranks:
        rank.trains, rank.progress, rank.iteration = False, -1.7e9, None
        rank.is_in_init()
    job.passes(2)
    fails(job, 0, 1, text="Gloo connectFullMesh failed with Connection reset by peer")

    assert KIND not in {kind for _, kind, _ in job.passes(4).ever()}


# -- which rank caused it


def test_a_timeout_names_the_rank_that_had_not_joined():
    """A timeout of 8 s and a validation of 60: all ranks have ended, and the log names rank 0."""
    job = trained(3)
    job.ranks[2].stands_at("validate", "/home/ada/eval.py", 31)
    job.others_wait(2)
    job.passes(8)
    fails(job, 0, 1, text=TIMED_OUT)
    job.passes(0.5)
    job.ranks[2].ends(signal=15)
    finding = job.passes(4).finding()

    assert brief(finding) == ("critical", KIND, (2,), (0, 1))
    assert finding.summary == (
        "all_reduce #101 of default_pg timed out on ranks 0,1: rank 2 had not joined it (last"
        " seen in validate, eval.py:31)"
    )
    assert finding.advice.startswith("find out why rank 2 did not join in time")


def test_a_call_that_failed_and_counts_as_completed_names_the_rank_too():
    """A timeout of 3 s ends the job before a hang is certain, and gloo's error ends the wait."""
    job = trained(3)
    job.ranks[2].stands_at("validate", "/home/ada/eval.py", 31)
    job.others_wait(2)
    job.passes(3)
    for rank in job.ranks[:2]:
        rank.comes_back()
    fails(job, 0, 1, text=TIMED_OUT, leaves=False)
    job.passes(0.5)
    for rank in job.ranks[:2]:
        rank.ends(1, later_s=0.2)
    job.passes(0.5)
    job.ranks[2].ends(signal=15)
    finding = job.passes(4).finding()

    assert brief(finding) == ("critical", KIND, (2,), (0, 1))
    assert finding.summary.startswith("all_reduce #101 of default_pg timed out on ranks 0,1: rank")


def test_while_that_rank_lives_and_others_wait_its_own_finding_stands():
    """Only one of the waiting ranks has timed out yet."""
    job = trained(3)
    job.ranks[2].stands_at("validate", "/home/ada/eval.py", 31)
    job.others_wait(2)
    job.passes(8)
    fails(job, 0, text=TIMED_OUT)

    assert job.passes(4).ever() == [("critical", "not-in-collective", (2,))]


def test_monitored_barrier_names_the_rank_itself():
    job = trained(3)
    job.ranks[2].stands_at("load")
    job.passes(1)
    fails(job, 0, text=BARRIER)
    fails(
        job,
        1,
        text=(
            "Rank 1 successfully reached monitoredBarrier, but received errors while waiting for"
            " send/recv from rank 0. Please check rank 0 logs for faulty rank."
        ),
    )
    job.passes(0.5)
    job.ranks[2].ends(signal=15)
    finding = job.passes(3).finding()

    assert brief(finding) == ("critical", KIND, (2,), (0, 1))
    assert finding.summary == (
        "monitored_barrier failed on ranks 0,1: rank 2 did not join (last seen in load,"
        " train.py:40)"
    )


def test_a_rank_that_left_its_group_is_named():
    """It called destroy_process_group, and exports the model. The others had one step more."""
    job = trained(3)
    job.ranks[1].phase = "leaving"
    job.ranks[1].works_at("export")
    job.passes(1)
    fails(job, 0, 2)
    job.passes(0.5)
    job.ranks[1].ends(signal=15)
    finding = job.passes(3).finding()

    assert brief(finding) == ("critical", KIND, (1,), (0, 2))
    assert "rank 1 has left its process group" in finding.summary
    assert "dist.barrier() before destroy_process_group()" in finding.advice


def test_a_rank_that_is_slow_to_end_has_left_early_and_no_other_finding_ever_stood():
    """sys.exit(0) on a busy host: the sockets are closed 3 s before the process is gone."""
    job = trained(3)
    job.ranks[1].phase = "leaving"
    fails(job, 0, 2, leaves=False)
    job.passes(3.5)
    job.ranks[1].ends(0, exiting_unix_ns=unix_ns(job.now - 3.7))

    assert job.passes(3).ever() == [("critical", "left-early", (1,))]


def test_a_signal_that_was_noticed_late_still_came_first():
    """On a busy host the others' errors carry an earlier time than the end of its process."""
    job = trained(3)
    fails(job, 0, 2, leaves=False)
    job.passes(0.5)
    job.ranks[1].ends(signal=15)
    job.passes(0.5)
    for number in (0, 2):
        job.ranks[number].ends(1)

    assert job.passes(5).ever() == [("critical", "rank-killed", (1,))]


def test_a_rank_that_leaves_after_the_error_did_not_cause_it():
    """The launcher sent SIGTERM, and a handler cleans up."""
    job = trained(3)
    fails(job, 0, 2)
    job.passes(1.5)
    job.ranks[1].phase = "leaving"
    job.passes(1)
    job.ranks[1].ends(signal=15)

    assert job.passes(3).kinds() == [("critical", KIND, ())]


def test_a_rank_that_is_not_heard_any_more_is_named():
    """Its host lost power, so no relay is left there to report its end."""
    job = trained(3)
    job.ranks[2].reports = job.ranks[2].trains = False
    job.passes(2)
    fails(job, 0, 1)
    finding = job.passes(4).finding()

    assert brief(finding) == ("critical", KIND, (2,), (0, 1))
    assert "rank 2 has not reported for" in finding.summary


# -- NCCL reports the error before it ends the rank


def test_what_nccl_says_of_its_connections_stands_before_it_ends_the_rank(monkeypatch):
    """The watchdog has seen the error and sleeps a minute before it aborts."""
    job = trained(3)
    job.others_wait()
    rank = job.ranks[0]
    whole = rank.state

    def state():
        found = whole()
        groups = tuple(
            GroupProgress(
                *(getattr(one, name) for name in one.__struct_fields__[:6]), "REMOTE_ERROR"
            )
            for one in found.groups
        )
        return type(found)(
            *(
                groups if name == "groups" else getattr(found, name)
                for name in found.__struct_fields__
            )
        )

    monkeypatch.setattr(rank, "state", state)
    finding = job.passes(12).finding()

    assert job.ever() == [("critical", KIND, ())]
    assert brief(finding) == ("critical", KIND, (), (0,))
    assert "its backend reports REMOTE_ERROR" in finding.summary


# -- foreign text


def test_ranks_that_are_ended_from_outside_say_nothing_of_the_network():
    """scancel on two hosts: the second host's ranks lose their peers before their own SIGTERM."""
    job = FakeJob(4, hosts=2).trains(10)
    fails(job, 2, 3, leaves=False)
    for number in (2, 3):
        job.ranks[number].ends(signal=15, later_s=0.05)
    job.ranks[0].gone = job.ranks[1].gone = True
    job.passes(5)
    for number in (0, 1):
        job.ranks[number].ends(signal=15)

    assert job.passes(3).ever() == []


def test_a_launcher_that_ends_the_others_after_an_error_does_not_hide_it():
    job = trained(3)
    job.others_wait()
    job.passes(1)
    fails(job, 0)
    for number in (1, 2):
        fails(job, number, leaves=False)
        job.ranks[number].ends(signal=15, later_s=0.4)

    assert job.passes(4).kinds() == [("critical", KIND, ())]
