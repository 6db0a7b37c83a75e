"""What NCCL says of itself as evidence: its status service, its communicators being built, torch's watchdog."""

from __future__ import annotations

import msgspec
import pytest

from ddtop.diagnosis.nccl import ras_lines, watchdog_line
from ddtop.wire.gpu import Communicator, RasAnswer, RasRank
from ddtop.wire.records import CommStatus
from tests.jobs import SECOND, FakeJob


def nccl_job(**environment):
    job = FakeJob(4)
    for rank in job.ranks:
        rank.told |= {"backend": "nccl", "environment": environment}
        job.greet(rank)
    return job


def service(*states, counts=None, **more):
    """Its answer: a rank a state, with these launches of all_reduce."""
    ranks = tuple(
        RasRank(number, "node0", 4800 + number, state, number, {"AllReduce": (counts or [812] * len(states))[number]})
        for number, state in enumerate(states)
    )
    return RasAnswer(
        (Communicator("0x5c", 4, ranks, state="ok" if set(states) == {"ok"} else "bad", **more),), "2.29.7"
    )


def stuck(job, answer=None, seconds=8):
    job.trains(10)
    job.others_wait()
    job.passes(seconds / 2)
    if answer is not None:
        job.say(CommStatus(answer))
    job.passes(seconds / 2)
    return job.finding()


def test_a_stuck_collective_has_nccl_s_own_view_in_its_evidence():
    finding = stuck(nccl_job(), service("ok", "ok", "ok", "ok"))

    assert finding.kind == "collective-stuck"
    assert "NCCL's own view: 1 communicator, no peer missing or dead" in finding.evidence


@pytest.mark.parametrize("state", ["dead", "unresponsive", "missing"])
def test_a_peer_that_is_gone_for_nccl_is_named_by_its_number_in_the_job(state):
    finding = stuck(nccl_job(), service("ok", "ok", state, "ok"))

    assert f"NCCL calls rank 2 {state}" in finding.evidence


def test_who_has_launched_less_is_named():
    finding = stuck(nccl_job(), service("ok", "ok", "ok", "ok", counts=[812, 812, 811, 812]))

    assert "NCCL: rank 2 has launched 811 AllReduce, the others 812" in finding.evidence


def test_when_half_of_them_differ_nobody_is_behind():
    """Two pipelines count for themselves."""
    finding = stuck(nccl_job(), service("ok", "ok", "ok", "ok", counts=[812, 811, 811, 812]))

    assert not [line for line in finding.evidence if "launched" in line]


def test_an_old_answer_says_nothing_of_now():
    job = nccl_job()
    job.say(CommStatus(service("ok", "dead", "ok", "ok")))
    job.trains(70)

    assert ras_lines(job.snapshot()) == []


def test_a_service_that_did_not_answer_is_said():
    finding = stuck(nccl_job(), RasAnswer(why="ConnectionRefusedError"))

    assert "NCCL's status service did not answer: ConnectionRefusedError" in finding.evidence


def test_where_python_is_frozen_nccl_still_tells_who_has_not_come():
    """C code holds the interpreter of rank 2 for ever: its agent is silent, NCCL's own thread is not."""
    job = nccl_job()
    job.trains(10)
    job.ranks[2].freezes()
    job.others_wait(2)
    job.passes(4)
    job.say(CommStatus(service("ok", "ok", "ok", "ok", counts=[812, 812, 811, 812])))
    job.passes(4)
    finding = job.finding()

    assert finding.ranks == (2,)
    assert "NCCL: rank 2 has launched 811 AllReduce, the others 812" in finding.evidence


def test_an_error_of_the_backend_blames_the_peer_that_nccl_calls_dead():
    """get_error says REMOTE_ERROR on three ranks; nobody's process is gone on this host."""
    job = nccl_job()
    job.trains(10)
    job.ranks[3].trains = False
    job.ranks[3].stands_at("train_step")
    job.others_wait(3)
    for rank in job.ranks[:3]:
        groups = tuple(msgspec.structs.replace(one, error="REMOTE_ERROR") for one in rank.state().groups)
        rank.says = {"groups": groups}
    job.say(CommStatus(service("ok", "ok", "ok", "dead")))
    job.passes(3)

    assert any("NCCL calls rank 3 dead" in line for finding in job.verdict().findings for line in finding.evidence)


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        ({}, "torch's watchdog ends the ranks in 29 min 52 s (timeout 30 min), with a dump of its flight recorder"),
        ({"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}, "torch's watchdog ends the ranks in 29 min 52 s (timeout 30 min)"),
        (
            {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"},
            "nothing ends this wait: TORCH_NCCL_ASYNC_ERROR_HANDLING=0 switches torch's watchdog off",
        ),
    ],
)
def test_the_watchdog_s_time_is_told_from_the_environment(environment, line):
    assert line in stuck(nccl_job(**environment)).evidence


def test_of_gloo_there_is_no_watchdog_to_tell():
    assert not [line for line in stuck(FakeJob(4)).evidence if "watchdog" in line]


def test_a_timeout_that_has_passed_is_said():
    job = nccl_job()
    finding = stuck(job)
    rank = job.snapshot().ranks[0]

    assert finding.kind == "collective-stuck"
    assert "has passed" in (watchdog_line([rank], 0, 1_900 * SECOND) or "")


def test_a_communicator_that_is_being_built_is_said():
    job = nccl_job()
    job.trains(10)
    job.others_wait()
    for rank in job.ranks:
        rank.says = {"groups": tuple(msgspec.structs.replace(one, building=True) for one in rank.state().groups)}
    job.passes(8)

    assert (
        "ranks 0-3 are in the first collective of this group: NCCL builds its communicator there, and needs all members"
        in (job.finding().evidence)
    )
    assert job.snapshot().ranks[0].nccl is None
