"""What NCCL reports about itself: its status service, communicators being built, the watchdog."""

from dataclasses import replace

import msgspec
import pytest

from ddtop.diagnosis.nccl import gone_ranks
from ddtop.policy import POLICY
from ddtop.relay.gpus.ras import parse_json, parse_text
from ddtop.say.nccl import ras_lines, watchdog_line
from ddtop.wire.records import CommStatus, RasAnswer
from tests.diagnosis.rules.nccl import nccl_job, service, stuck
from tests.jobs import SECOND, FakeJob
from tests.relay.gpus.answers import ANSWERS


def recorded(job, name):
    """The recorded answer of the service, with the processes of this job."""
    text = (ANSWERS / name).read_text()
    said = parse_json(text) if name.endswith(".json") else parse_text(text)
    world = [one for one in said.communicators if one.size in (0, 4)]
    # 2.24 does not report the number of the missing process.
    pids = {
        rank.pid: 4800 + (rank.number if rank.number >= 0 else 2)
        for one in world
        for rank in one.ranks
        if rank.pid
    }
    communicators = tuple(
        msgspec.structs.replace(
            one,
            ranks=tuple(
                msgspec.structs.replace(rank, pid=pids.get(rank.pid, rank.pid))
                for rank in one.ranks
            ),
        )
        for one in said.communicators
    )
    job.say(CommStatus(msgspec.structs.replace(said, communicators=communicators)))
    return ras_lines(job.snapshot(), POLICY)


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("2.27.5/healthy.txt", ["NCCL's own view: 1 communicator, no peer missing or dead"]),
        ("2.28.9/healthy.json", ["NCCL's own view: 1 communicator, no peer missing or dead"]),
        ("2.27.5/three-comms.txt", ["NCCL's own view: 3 communicators, no peer missing or dead"]),
        ("2.24.3/behind.txt", ["NCCL: rank 2 has launched 811 collectives, the others 812"]),
        ("2.27.5/visible-behind.txt", ["NCCL: rank 2 has launched 811 AllReduce, the others 812"]),
        ("2.30.7/behind.json", ["NCCL: rank 2 has launched 811 AllReduce, the others 812"]),
        (
            "2.27.5/init.txt",
            [
                "NCCL: rank 3 has not finished building a communicator",
                "NCCL: rank 3 has launched 0 AllReduce, the others 812",
            ],
        ),
        (
            "2.30.7/init.json",
            [
                "NCCL: rank 3 has not finished building a communicator",
                "NCCL: rank 3 has launched 0 AllReduce, the others 812",
            ],
        ),
        ("2.27.5/async-three.txt", ["NCCL: ranks 0,1,3 have an error in a communicator"]),
        ("2.30.7/async.json", ["NCCL: rank 1 has an error in a communicator"]),
        ("2.30.7/abort.json", ["NCCL: rank 1 has aborted a communicator"]),
        ("2.30.7/finalize.json", ["NCCL: rank 1 is taking down a communicator"]),
        ("2.27.5/left.txt", ["NCCL: rank 3 answers but is not in a communicator of the others"]),
        ("2.28.9/left.json", ["NCCL: rank 3 answers but is not in a communicator of the others"]),
        ("2.24.3/dead.txt", ["NCCL calls rank 2 dead"]),
        ("2.27.5/unresponsive.txt", ["NCCL calls rank 2 unresponsive"]),
        ("2.30.7/dead.json", ["NCCL calls rank 2 dead"]),
        ("2.28.9/three-comms-dead.json", ["NCCL calls rank 2 dead"]),
        ("2.28.9/cut-off.json", ["NCCL: the process that answered reaches 1 of 4 ranks"]),
        ("2.30.7/cut-off.txt", ["NCCL: the process that answered reaches 1 of 4 ranks"]),
    ],
)
def test_what_it_really_answered_is_told_of_the_ranks_of_the_job(name, lines):
    assert recorded(nccl_job().trains(2), name) == lines


@pytest.mark.parametrize(
    ("name", "ranks"),
    [("2.30.7/dead.json", (2,)), ("2.28.9/left.json", ()), ("2.28.9/cut-off.json", ())],
)
def test_gone_is_who_does_not_answer(name, ranks):
    """Who left a communicator is not gone, nor are others if the one that answers was stopped."""
    job = nccl_job().trains(2)
    recorded(job, name)

    assert gone_ranks(job.snapshot(), POLICY) == ranks


def test_of_two_ranks_the_one_with_fewer_launches_has_not_come():
    job = FakeJob(2)
    for rank in job.ranks:
        rank.told |= {"backend": "nccl"}
        job.greet(rank)
    job.trains(2)
    job.say(CommStatus(service("ok", "ok", counts=[812, 811])))

    assert ras_lines(job.snapshot(), POLICY) == [
        "NCCL: rank 1 has launched 811 AllReduce, the others 812"
    ]


def test_ranks_with_one_pid_are_distinguished_by_their_numbers_in_a_communicator_of_all():
    """Each container has a process with pid 1."""
    job = FakeJob(4, hosts=4).trains(2)
    addresses = [f"10.0.0.{number}" for number in range(4)]
    world = service("ok", "ok", "ok", "ok", pids=[1] * 4, hosts=addresses).communicators[0]
    pair = service("ok", "ok", counts=[812, 811], pids=[1] * 2, hosts=addresses[2:]).communicators[
        0
    ]
    job.say(CommStatus(RasAnswer((pair, world), "2.29.7")))
    seen = job.snapshot()
    ranks = [
        msgspec.structs.replace(rank, hello=msgspec.structs.replace(rank.hello, pid=1))
        for rank in seen.ranks
    ]

    assert ras_lines(replace(seen, ranks=tuple(ranks)), POLICY) == [
        "NCCL: rank 3 has launched 811 AllReduce, the others 812"
    ]


def test_an_old_answer_says_nothing_of_now():
    job = nccl_job()
    job.say(CommStatus(service("ok", "dead", "ok", "ok")))

    assert ras_lines(job.trains(70).snapshot(), POLICY) == []


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        (
            {},
            (
                "torch's watchdog ends the ranks in 30 min 52 s (timeout 30 min, then 60 s), with a"
                " dump of its flight recorder"
            ),
        ),
        (
            {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1000"},
            "torch's watchdog ends the ranks in 29 min 56 s (timeout 30 min, then 4 s)",
        ),
        (
            {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"},
            (
                "torch's heartbeat monitor ends the ranks in 37 min 52 s (timeout 30 min, then 8"
                " min), with a dump of its flight recorder"
            ),
        ),
        (
            {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"},
            (
                "nothing ends this wait: TORCH_NCCL_ASYNC_ERROR_HANDLING=0, and"
                " TORCH_NCCL_DUMP_ON_TIMEOUT=0"
            ),
        ),
        (
            {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "2", "TORCH_NCCL_ENABLE_MONITORING": "0"},
            (
                "nothing ends this wait: TORCH_NCCL_ASYNC_ERROR_HANDLING=2, and"
                " TORCH_NCCL_ENABLE_MONITORING=0"
            ),
        ),
        (
            {"TORCH_NCCL_BLOCKING_WAIT": "1"},
            "the wait raises an error in 29 min 52 s (timeout 30 min, TORCH_NCCL_BLOCKING_WAIT)",
        ),
    ],
)
def test_the_watchdog_s_time_is_reported_from_the_environment(environment, line):
    assert line in stuck(nccl_job(**environment)).finding().evidence


def test_a_timeout_that_has_passed_is_reported():
    job = nccl_job()
    finding = stuck(job).finding()
    rank = job.snapshot().ranks[0]

    assert finding.kind == "collective-stuck"
    assert "has passed" in (
        watchdog_line([rank], 0, rank.comm.open_collectives[0].created_unix_ns + 1_900 * SECOND)
        or ""
    )


def test_a_communicator_that_is_being_built_is_reported():
    job = nccl_job().trains(10)
    job.others_wait()
    for rank in job.ranks:
        rank.says = {
            "groups": tuple(
                msgspec.structs.replace(one, building=True) for one in rank.state().groups
            )
        }
    job.passes(8)

    assert (
        "ranks 0-3 are in the first collective of this group: NCCL builds its communicator there"
        " and needs all members" in (job.finding().evidence)
    )
    assert job.snapshot().ranks[0].nccl is None


@pytest.mark.parametrize(("ago_s", "gone"), [(50, (2,)), (70, ())])
def test_an_answer_of_the_last_minute_tells_who_is_gone(ago_s, gone):
    job = nccl_job().trains(2)
    job.say(CommStatus(service("ok", "ok", "dead", "ok")))
    snapshot = job.passes(ago_s).snapshot()

    assert gone_ranks(snapshot, POLICY) == gone
    assert ("NCCL calls rank 2 dead" in ras_lines(snapshot, POLICY)) == bool(gone)
