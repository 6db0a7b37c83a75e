"""Real processes that do not find each other. Torch itself would report nothing for half an
hour.
"""

import json
import os
import socket
import sys

import pytest

from tests.end_to_end.conftest import PROGRAMS
from tests.ports import free_port

pytestmark = pytest.mark.torch


@pytest.fixture
def listener():
    """A program that listens on a port and answers nothing."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        yield one


def port_of(one):
    return one.getsockname()[1]


def shells(world, *ranks, size=2, port=None, words=()):
    """These ranks, each started from a shell of its own."""
    shared = {"WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port or free_port()}
    return [world.start("meeting", *words, RANK=rank, **shared) for rank in ranks]


def test_a_rank_that_was_never_started_and_then_comes(world):
    """WORLD_SIZE=3 and two shells. Later the user looks into the third shell."""
    port = free_port()
    shells(world, 0, 1, size=3, port=port)

    finding = world.finding("rank-missing", 60)

    # The launcher of the others lives, and may still start the third rank, which it does in the
    # end.
    assert (finding["severity"], finding["ranks"], finding["victims"]) == ("warning", [2], [0, 1])
    assert f"(store 127.0.0.1:{port})" in finding["summary"]
    shells(world, 2, size=3, port=port)
    # A finding that the last rank was late may still be there for a second: it was late.
    world.until(lambda: not world.moving(ranks=3)["findings"], 20, "silence once all have come")


def test_a_rank_that_fails_before_its_relay_has_started_is_named(world):
    """Its first line fails, a few milliseconds after the start. There was no job at all before."""
    script = world.folder / "train.py"
    script.write_text("import flash_attention\n")
    rank = world.start_command([sys.executable, str(script)], RANK=1, WORLD_SIZE=2, LOCAL_RANK=1)
    world.done(rank)

    finding = world.finding("rank-crashed", 30)

    assert (finding["severity"], finding["ranks"]) == ("critical", [1])
    assert "No module named 'flash_attention'" in finding["summary"]


def test_a_rank_that_waits_for_something_else_before_it_comes(world):
    """mp.spawn: only the relay sees a child that has no rank number yet."""
    pipe = world.folder / "licence"
    os.mkfifo(pipe)
    world.start("meeting", str(pipe), str(world.folder / "store"))

    finding = world.finding("late-to-init", 60)

    assert (finding["severity"], finding["ranks"], finding["victims"]) == ("critical", [2], [0, 1])
    assert "of the same parent is stuck" in finding["summary"]
    pipe.write_bytes(b"\n")
    assert world.moving(ranks=3)["world_size"] == 3


def test_a_rank_that_another_rank_started_is_still_importing(world):
    """A server of the same parent runs beside it. That server was blamed before."""
    file = world.folder / "imports"
    server = world.start_command(
        [sys.executable, "-m", "http.server", str(free_port()), "--bind", "127.0.0.1"]
    )
    world.start("own_launcher", str(file), str(free_port()))

    finding = world.finding("late-to-init", 60)

    assert (finding["severity"], finding["ranks"], finding["victims"]) == ("warning", [1], [0])
    assert "rank 1 is still importing torch" in finding["summary"]
    assert str(server.pid) not in finding["summary"]
    file.touch()
    assert world.moving(ranks=2)["world_size"] == 2


def test_a_node_that_does_not_come_is_missed_before_there_is_a_rank(world):
    """torchrun itself waits; no process of the job has an agent yet."""
    port = free_port()
    place = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", *place]
    launcher = world.start_command([*torchrun, str(PROGRAMS / "meeting.py")])

    def found():
        done = world.ddtop("diagnose", "--pid", str(launcher.pid), "--json")
        return json.loads(done.stdout)["findings"] if done.returncode in (0, 1) else None

    (finding,) = world.until(found, 90, "a finding about the launcher")

    assert (finding["kind"], finding["ranks"]) == ("rank-missing", [])
    assert f"for 1 of 2 nodes at 127.0.0.1:{port}" in finding["summary"]


def test_a_script_that_fails_after_the_ranks_that_it_has_spawned_fails_the_job(world):
    """torchrun gives RANK=0 to a script that calls mp.spawn."""
    script = world.torchrun("spawns_and_fails", str(world.folder / "store"), ranks=1)
    world.done(script, 90)

    finding = world.finding("helper-crashed", 30)

    assert (finding["severity"], finding["victims"]) == ("critical", [])
    assert "raised KeyError: 'best_loss' at spawns_and_fails.py" in finding["summary"]
    assert "failed after them: KeyError" in world.diagnose()["ended"]["reason"]


def test_a_stranger_on_the_port_is_named_with_its_pid(world, listener):
    shells(world, 0, 1, port=port_of(listener))

    def named():
        fits = (one for one in world.diagnose()["findings"] if one["kind"] == "master-unreachable")
        return next((one for one in fits if f"held by pid {os.getpid()}" in one["summary"]), None)

    finding = world.until(named, 60, "a stranger with its pid")

    assert (finding["severity"], finding["ranks"]) == ("critical", [0, 1])
    assert f"kill {os.getpid()}" in finding["advice"]


def test_a_port_of_its_own_and_a_number_that_is_taken(world):
    """First rank 1 has a wrong port, and is the odd one. Then rank 1 is started again with the
    right port, and there are two of them.
    """
    port = free_port()
    shells(world, 0, size=2, port=port)
    shells(world, 1, size=2)

    finding = world.finding("rendezvous-mismatch", 60)

    assert (finding["severity"], finding["ranks"], finding["victims"]) == ("critical", [1], [0])
    assert f"rank 0: 127.0.0.1:{port}" in finding["summary"]
