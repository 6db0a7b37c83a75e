"""Launchers without a rank, as /proc shows them."""

import pytest

from ddtop.cli import outside_jobs
from ddtop.feeds.outside import targets
from ddtop.feeds.outside.jobs import read, read_one
from ddtop.relay.processes import pyspy
from ddtop.wire.records import StackFrame
from tests.feeds.launchers import torchrun
from tests.ports import free_port


def seen(pid):
    return targets.look(read_one(pid))


def test_the_node_with_the_store_knows_how_many_have_come(tmp_path):
    port = free_port()
    with torchrun(tmp_path, "first", port) as first:
        alone = seen(first)
        with torchrun(tmp_path, "second", port) as second:
            both, other = seen(first), seen(second)

    assert (alone.script, alone.place) == ("tabular", f"127.0.0.1:{port}")
    assert (alone.nodes, alone.nodes_there, alone.probe) == (2, 1, None)
    assert (both.nodes_there, both.probe) == (2, None)
    assert (other.nodes_there, other.probe) == (None, None)
    assert 0.0 < alone.waited_s < 60.0


@pytest.mark.parametrize(
    ("frame", "dials"),
    [
        (StackFrame("_create_tcp_store", "/x/distributed/elastic/rendezvous/c10d.py", 40), True),
        (StackFrame("<module>", "/x/distributed/elastic/rendezvous/c10d.py", 3), False),
        (StackFrame("load", "/x/train.py", 3), False),
    ],
)
def test_without_a_connection_its_stack_says_whether_it_looks_for_the_store(
    tmp_path, monkeypatch, frame, dials
):
    monkeypatch.setattr(targets, "frames_of", lambda _pid: [frame])
    with torchrun(tmp_path, "none", free_port()) as pid:
        found = seen(pid)

    assert (found.nodes_there, found.probe) == (None, "refused")
    assert bool(found.waited_s) is dials


@pytest.mark.skipif(pyspy.find() is None, reason="py-spy is not installed")
def test_a_program_that_is_not_in_the_rendezvous_does_not_look_for_the_store(tmp_path):
    with torchrun(tmp_path, "none", free_port()) as pid:
        assert seen(pid).waited_s == 0.0


@pytest.mark.parametrize(
    "words", [["--standalone"], ["--nnodes", "1"]], ids=["standalone", "one node"]
)
def test_a_single_node_without_an_address_opens_its_own_store_and_waits_for_nobody(tmp_path, words):
    """On a busy machine it stays in the rendezvous for seconds before its ranks start."""
    with torchrun(tmp_path, "none", free_port(), *words) as pid:
        assert pid not in {one.launchers[0] for one in targets.without_ranks(read())}
        assert targets.waiting_launchers([pid]) == ()


def test_launchers_with_a_child_and_other_programs_are_left_out(tmp_path):
    port = free_port()
    with torchrun(tmp_path, "none", port) as waits, torchrun(tmp_path, "with a child", port) as has:
        listed = {one.launchers[0] for one in targets.without_ranks(read())}
        looked = outside_jobs.judge_launchers("tabular", [has])

    assert waits in listed
    assert has not in listed
    assert looked is None


def test_a_launcher_whose_ranks_have_ended_is_left_out(tmp_path, monkeypatch):
    """torchrun waits for the other nodes at the end, too: its children have used CPU time."""
    monkeypatch.setattr(targets, "RANKS_CPU_S", 0.0)
    with torchrun(tmp_path, "none", free_port()) as pid:
        assert outside_jobs.judge_launchers("tabular", [pid]) is None
