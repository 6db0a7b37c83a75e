"""Real ranks that are elsewhere in real ways. Each sentence names the place, and what would release
the rank does release it.
"""

import os
import re
import signal

import pytest

pytestmark = pytest.mark.torch


@pytest.fixture
def elsewhere(world):
    """Three ranks. Returns (the world, a function that releases a rank by its named pipe)."""
    for name in ("spawn", "pipe", "lock", "input"):
        os.mkfifo(world.folder / name)
    held = []

    def release(name):
        held.append(os.open(world.folder / name, os.O_RDWR))
        os.write(held[-1], b"\n")

    world.torchrun("elsewhere", str(world.folder), ranks=3)
    yield world, release
    for descriptor in held:
        os.close(descriptor)


def sentence(world, function, kind="not-in-collective", rank=1):
    """The finding of that kind as soon as it is about that rank in that function."""

    def found():
        fits = (
            one
            for one in world.diagnose()["findings"]
            if (one["kind"], one["ranks"]) == (kind, [rank])
        )
        return next((one for one in fits if function in one["summary"]), None)

    return world.until(found, 60, f"a {kind} in {function}")


def test_every_way_of_being_elsewhere_has_its_own_sentence(elsewhere):
    world, release = elsewhere

    child = sentence(world, "in_child")
    match = re.search(
        r"^rank 1 has been waiting for its child \(pid (\d+)\) \(elsewhere.py:\d+ in_child\) for",
        child["summary"],
    )
    assert match, child["summary"]
    stalled = sentence(world, "in_spawn", "io-stall", rank=2)
    assert (stalled["severity"], stalled["ranks"], stalled["victims"]) == ("critical", [2], [0])
    assert (
        "waiting for a child process to start its program in in_spawn (elsewhere.py:"
        in stalled["summary"]
    )
    os.kill(int(match[1]), signal.SIGTERM)
    release("spawn")

    pipe = sentence(world, "in_pipe")
    assert (
        f"rank 1 has been reading the pipe {world.folder}/pipe in in_pipe (elsewhere.py:"
        in pipe["summary"]
    )
    # Rank 2 saves a checkpoint all the while. That is work, and shorter than three times the usual
    # wait of the job.
    world.until(
        lambda: world.status()[2]["place"]["waits_on"] == "checkpoint-save", 20, "a rank that saves"
    )
    assert [one["ranks"] for one in world.diagnose()["findings"]] == [[1]]
    (world.folder / "saved").touch()
    release("pipe")

    lock = sentence(world, "in_lock")
    assert "rank 1 has been waiting for a lock in in_lock (elsewhere.py:" in lock["summary"]
    assert any("in futex" in line for line in lock["evidence"])
    release("lock")

    asked = sentence(world, "in_input")
    assert (
        "rank 1 has been waiting for input on its standard input in in_input (elsewhere.py:"
        in asked["summary"]
    )
    assert asked["advice"].startswith("nobody can answer there")
    release("input")

    world.until(lambda: world.diagnose(2.5)["health"] == "ok", 30, "silence after all went on")
