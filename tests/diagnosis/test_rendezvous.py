"""Ranks that are there and do not find each other: in the wrong place, twice, or at an old file."""

from __future__ import annotations

import pytest

from ddtop.wire.rendezvous import Rendezvous, StoreFile
from tests.diagnosis.test_starting import early, enter
from tests.jobs import BASE, SECOND, FakeJob

PORT = 29500


def meets(world_size=3, absent=(), environments=None, **told):
    """All that are there look for the store of rank 0 on this host."""
    job = early(world_size, absent)
    for rank in job.ranks:
        rank.told |= {"environment": {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(PORT)}} | told
    for number, variables in (environments or {}).items():
        job.ranks[number].told["environment"] = job.ranks[number].told["environment"] | variables
    job.passes(1)
    return job


def way(number, **more):
    given = {"address": "127.0.0.1", "port": PORT, "sockets": ("ESTABLISHED",), "local": True, "listener_pid": 4800}
    return Rendezvous(number, 4800 + number, **(given | {"listener_ours": True} | more))


def all_enter(job, *numbers, **more):
    for number in numbers:
        job.ranks[number].way = way(number, **more)
    enter(job, *numbers)


# -- duplicate-rank


def another(job, number, pid, **told):
    """A further process claims this rank."""
    rank = job.ranks[number]
    first, rank.pid = rank.pid, pid
    kept, rank.told = rank.told, rank.told | told
    job.say(rank.hello(), rank)
    rank.pid, rank.told = first, kept


def test_two_processes_with_one_number_are_named_with_both_pids():
    """srun starts torchrun on each task, and none sets RANK: two are rank 1, and nobody is rank 2."""
    job = meets(3, absent=[2])
    all_enter(job, 0, 1)
    another(job, 1, 4902, init_unix_ns=BASE + 2 * SECOND)
    job.passes(7)

    finding = job.finding()

    assert (finding.severity, finding.kind, finding.ranks) == ("critical", "duplicate-rank", (1,))
    assert finding.summary.startswith(
        "2 processes claim rank 1 (pids 4801, 4902), and none claims rank 2; ranks 0,1 wait"
    )
    assert finding.victims == (0,)


def test_a_second_rank_0_that_found_the_port_taken_is_a_duplicate_though_it_has_ended():
    """RANK=0 in both panes: the second one cannot listen, and dies; the first waits for rank 1."""
    job = meets(2, absent=[1])
    all_enter(job, 0)
    another(job, 0, 4902)
    rank = job.ranks[0]
    rank.pid = 4902
    rank.ends(1)
    rank.gone, rank.reports, rank.pid = False, True, 4800
    job.passes(4)

    finding = job.finding()

    assert (finding.kind, finding.ranks) == ("duplicate-rank", (0,))
    assert "2 processes claim rank 0 (pids 4800, 4902, 1 of them has ended), and none claims rank 1" in finding.summary


def test_a_program_that_starts_the_real_one_is_no_duplicate():
    """A wrapper with RANK in its environment runs the training as its child, which joins the group."""
    job = meets(2)
    all_enter(job, 0, 1)
    another(job, 1, 4902, claim="init", launcher_pid=4801, init_unix_ns=BASE + 2 * SECOND)
    job.passes(7)

    assert "duplicate-rank" not in [kind for _, kind, _ in job.ever()]


# -- rendezvous-mismatch


def test_a_rank_with_another_port_is_the_odd_one():
    job = meets(3, environments={2: {"MASTER_PORT": "29501"}})
    all_enter(job, 0, 1)
    all_enter(job, 2, port=29501, sockets=(), probe="refused", listener_pid=None, listener_ours=None)
    job.passes(7)

    finding = job.finding()

    assert (finding.severity, finding.kind, finding.ranks) == ("critical", "rendezvous-mismatch", (2,))
    assert "(ranks 0,1: 127.0.0.1:29500, rank 2: 127.0.0.1:29501)" in finding.summary
    assert "rank 2 (pid 4802) → 127.0.0.1:29501: no connection, a try of the relay: refused; nobody listens there" in (
        finding.evidence
    )


def test_of_two_ranks_with_two_ports_the_one_without_the_store_is_odd():
    job = meets(2, environments={1: {"MASTER_PORT": "29501"}})
    all_enter(job, 0)
    all_enter(job, 1, port=29501, sockets=(), probe="refused", listener_pid=None, listener_ours=None)
    job.passes(7)

    assert job.kinds() == [("critical", "rendezvous-mismatch", (1,))]


def test_several_names_of_one_host_are_no_mismatch():
    """localhost here, 127.0.0.1 there, and the host's own name on the third: all three have reached the store."""
    job = meets(3, environments={1: {"MASTER_ADDR": "localhost"}, 2: {"MASTER_ADDR": "node0"}})
    all_enter(job, 0)
    all_enter(job, 1, address="localhost")
    all_enter(job, 2, address="node0")
    job.passes(7)

    assert job.ever() == []


def test_names_are_not_compared_where_nobody_looks_from_outside():
    job = meets(2, environments={1: {"MASTER_ADDR": "node0"}})
    enter(job, 0, 1)
    job.passes(7)

    assert job.ever() == []


def test_a_world_size_that_fewer_processes_contradict_is_the_odd_one():
    """WORLD_SIZE=2 and WORLD_SIZE=3, and two processes."""
    job = meets(3, absent=[2])
    job.ranks[0].told["world_size"] = 2
    all_enter(job, 0, 1)
    job.passes(7)

    finding = job.finding()

    assert (finding.kind, finding.ranks) == ("rendezvous-mismatch", (1,))
    assert finding.summary.startswith("WORLD_SIZE differs between ranks (rank 0: 2, rank 1: 3)")


def test_backends_that_have_nothing_in_common_differ():
    job = meets(3)
    for rank, backend in zip(job.ranks, ("gloo", "gloo", "mpi"), strict=True):
        rank.told["backend"] = backend
    all_enter(job, 0, 1, 2)
    job.passes(7)

    assert job.kinds() == [("critical", "rendezvous-mismatch", (2,))]


def test_a_backend_that_was_given_for_one_device_only_is_the_same():
    job = meets(2)
    job.ranks[0].told["backend"], job.ranks[1].told["backend"] = "gloo", "cpu:gloo,cuda:nccl"
    all_enter(job, 0, 1)
    job.passes(7)

    assert job.ever() == []


# -- master-unreachable


@pytest.mark.parametrize(
    ("probe", "why"),
    [
        ("timed out", "no answer: the packets are dropped"),
        ("name not found", "no such host name"),
        ("unreachable", "no route to that host"),
    ],
)
def test_an_address_that_leads_nowhere_is_unreachable_for_those_who_have_it(probe, why):
    job = meets(2)
    all_enter(job, 0, 1, sockets=("SYN_SENT",), probe=probe, local=False, listener_pid=None, listener_ours=None)
    job.passes(7)

    finding = job.finding()

    assert (finding.severity, finding.kind, finding.ranks) == ("critical", "master-unreachable", (0, 1))
    assert finding.summary.startswith(f"ranks 0,1 cannot reach the store at 127.0.0.1:29500 ({why}")


def test_rank_0_that_listens_here_under_an_address_of_another_host_says_so():
    job = meets(2)
    all_enter(job, 0, 1, sockets=("CLOSE_WAIT",), probe="open", local=False)
    job.passes(7)

    assert "rank 0 listens on this host, whose address this is not" in job.finding().summary


def test_a_store_behind_an_address_of_a_service_is_reached():
    """Kubernetes: MASTER_ADDR is a service's, which no host has, and leads to rank 0 all the same."""
    job = meets(2)
    all_enter(job, 0, 1, local=False)
    job.passes(7)

    assert job.ever() == []


def test_a_refusal_while_rank_0_is_not_there_says_that_rank_0_is_missing():
    job = meets(3, absent=[0])
    all_enter(job, 1, 2, sockets=(), probe="refused", listener_pid=None, listener_ours=None)
    job.passes(10)

    assert job.ever() == [("critical", "rank-missing", (0,))]


def test_a_refusal_while_rank_0_sleeps_before_init_says_that_rank_0_is_late():
    job = meets(2)
    job.ranks[0].stands_at("prepare", line=5)
    all_enter(job, 1, sockets=(), probe="refused", listener_pid=None, listener_ours=None)
    job.passes(9)

    assert job.ever() == [("critical", "late-to-init", (0,))]


def test_ranks_that_gave_up_without_a_connection_could_not_reach_the_store():
    job = meets(2)
    all_enter(job, 0, 1, sockets=("SYN_SENT",), probe="timed out", local=False, listener_pid=None, listener_ours=None)
    job.passes(7)
    for rank in job.ranks:
        rank.raises(
            "DistNetworkError", "The client socket has timed out after 1800000ms while trying to connect to (a, 1)."
        )
        rank.ends(1)
    job.passes(2)

    finding = job.finding()

    assert (finding.kind, finding.ranks) == ("master-unreachable", (0, 1))
    assert finding.summary == "ranks 0,1 cannot reach the store at 127.0.0.1:29500 and gave up in init_process_group"


STRANGER = {"listener_pid": 99, "listener_ours": False, "listener_command": "python old.py"}


def test_a_stranger_on_the_port_is_named_and_the_rank_that_could_not_listen():
    """A run of yesterday still holds 29500: rank 0 dies, rank 1 talks to it for ever."""
    job = meets(2)
    all_enter(job, 1, **STRANGER)
    enter(job, 0)
    job.ranks[0].raises("DistNetworkError", "failed to listen on any local network address. name: EADDRINUSE")
    job.ranks[0].ends(1)
    job.passes(3)

    finding = job.finding()

    assert (finding.kind, finding.ranks) == ("master-unreachable", (0, 1))
    assert "rank 0 could not listen: 127.0.0.1:29500 is held by pid 99 (python old.py)" in finding.summary
    assert "kill 99" in finding.advice


def test_another_users_listener_is_named_by_its_number():
    job = meets(2)
    all_enter(job, 1, listener_pid=None, listener_ours=False, listener_user="uid 1003")
    job.passes(7)

    assert "is held by a process of uid 1003, which is not of this job" in job.finding().summary


def test_the_launcher_of_the_other_node_on_one_host_is_no_stranger():
    """Two torchruns with --nnodes 2 on one machine: the store belongs to the first."""
    job = meets(2)
    for rank in job.ranks:
        rank.told["environment"] |= {"GROUP_WORLD_SIZE": "2"}
    all_enter(job, 0, 1, listener_pid=99, listener_ours=False, listener_command="python -m torch.distributed.run")
    job.passes(7)

    assert job.ever() == []


# -- peer-unreachable


def dials(**more):
    """Rank 1 has the store, and asks for rank 0 at an address that rank 0's other network has."""
    job = meets(2)
    job.ranks[0].told["environment"] |= {"GLOO_SOCKET_IFNAME": "docker0"}
    all_enter(job, 0, listens=("172.17.0.1:41234", "0.0.0.0:29500"))
    all_enter(job, 1, dials=("172.17.0.1:41234",), **more)
    return job


def test_a_peer_at_an_address_of_a_bridge_is_named_with_its_interface():
    job = dials()
    job.passes(10)

    finding = job.finding()

    assert (finding.severity, finding.kind, finding.ranks) == ("critical", "peer-unreachable", (0,))
    assert finding.summary.startswith(
        "rank 1 has reached the store, but not rank 0 at 172.17.0.1:41234 (a bridge of containers), in init_process_group for"
    )
    assert "rank 0 on node0: GLOO_SOCKET_IFNAME=docker0" in finding.evidence


def test_a_peer_that_is_dialled_for_a_moment_is_no_news():
    job = dials()
    job.passes(7)

    assert job.ever() == []


def test_whoever_has_no_store_yet_does_not_know_its_peers():
    job = dials(sockets=("SYN_SENT",))
    job.passes(10)

    assert "peer-unreachable" not in [kind for _, kind, _ in job.ever()]


def test_ranks_that_gave_up_on_each_other_say_at_which_address():
    """The host's own name leads to 127.0.1.1: each rank tells the others to come there."""
    job = meets(2)
    all_enter(job, 0, 1)
    job.passes(2)
    for rank in job.ranks:
        rank.raises(
            "RuntimeError", "Gloo connectFullMesh failed: SO_ERROR: Connection refused, remote=[127.0.1.1]:3492"
        )
        rank.ends(1)
    job.passes(2)

    finding = job.finding()

    assert (finding.kind, finding.ranks, finding.victims) == ("peer-unreachable", (), (0, 1))
    assert "but not the others at 127.0.1.1:3492 (loopback: on each host another address)" in finding.summary


def test_a_rank_that_left_is_why_the_others_gave_up_on_it():
    job = meets(2)
    all_enter(job, 0)
    job.passes(2)
    job.ranks[1].ends(0)
    job.ranks[0].raises("RuntimeError", "Gloo connectFullMesh failed with Connection closed by peer")
    job.ranks[0].ends(1)
    job.passes(2)

    assert job.kinds() == [("critical", "left-early", (1,))]


# -- stale-store


def file_store(age_s=86400, **more):
    modified = None if age_s is None else BASE - age_s * SECOND
    given = {"bytes": 911, "modified_unix_ns": modified, "writable": True}
    return {
        "environment": {},
        "init_method": "file:///data/store",
        "store_file": StoreFile("/data/store", **(given | more)),
    }


def test_a_file_store_of_an_earlier_run_is_named_with_its_age():
    job = meets(2, **file_store())
    enter(job, 0, 1)
    job.passes(7)

    finding = job.finding()

    assert (finding.severity, finding.kind, finding.ranks) == ("critical", "stale-store", (0, 1))
    assert (
        "the file store /data/store is older than this job: 911 bytes, last written 24 h 0 min before it began"
        in finding.summary
    )
    assert finding.advice == "remove it and start again: rm /data/store"


def test_the_error_that_a_stale_store_leads_to_is_its_consequence():
    job = meets(2, **file_store())
    enter(job, 0, 1)
    job.passes(2)
    job.ranks[0].raises(
        "RuntimeError", "Gloo connectFullMesh failed with ... Connection refused, remote=[10.0.0.1]:3492"
    )
    job.ranks[0].ends(1)
    job.passes(2)

    assert job.ever() == [("critical", "stale-store", (0, 1))]


@pytest.mark.parametrize(
    "more", [{"bytes": 0}, {"bytes": None, "modified_unix_ns": None}, {"modified_unix_ns": BASE + SECOND}]
)
def test_a_file_that_is_empty_or_of_this_job_is_not_stale(more):
    """Made by mkstemp a day ago; not there yet; written by rank 1 a moment ago."""
    job = meets(2, **file_store(**more))
    enter(job, 0, 1)
    job.passes(7)

    assert job.ever() == []


def test_a_file_that_may_not_be_written_is_named():
    job = meets(2, **file_store(writable=False, bytes=0, owner="uid 0"))
    enter(job, 0, 1)
    job.ranks[0].raises("RuntimeError", "open(/data/store): Permission denied")
    job.ranks[0].ends(1)
    job.passes(2)

    finding = job.finding()

    assert finding.kind == "stale-store"
    assert "cannot use the file store /data/store: not writable for this user, it is of uid 0" in finding.summary


# -- version-skew


def test_another_torch_on_one_rank_is_a_warning():
    job = FakeJob(3)
    for rank, version in zip(job.ranks, ("2.7.0", "2.7.0", "2.6.0"), strict=True):
        rank.told["torch"] = version
        job.say(rank.hello(), rank)
    job.trains(3)

    finding = job.finding()

    assert (finding.severity, finding.kind, finding.ranks) == ("warning", "version-skew", (2,))
    assert finding.summary == "rank 2 runs other versions than the rest: torch (ranks 0,1: 2.7.0, rank 2: 2.6.0)"


def test_two_copies_of_the_script_are_told_apart_by_their_text():
    job = FakeJob(2)
    for rank, digest in zip(job.ranks, ("3f2a0000", "9bc10000"), strict=True):
        rank.told["script_digest"] = digest
        job.say(rank.hello(), rank)
    job.trains(3)

    finding = job.finding()

    assert (finding.kind, finding.ranks) == ("version-skew", (0, 1))
    assert "script (rank 0: train 3f2a0000, rank 1: train 9bc10000)" in finding.summary


def test_a_rank_that_has_not_imported_torch_yet_has_no_other_torch():
    job = FakeJob(2)
    job.ranks[0].told["torch"] = "2.7.0"
    job.say(job.ranks[0].hello(), job.ranks[0])
    job.trains(3)

    assert job.ever() == []
