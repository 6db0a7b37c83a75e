"""`ddtop stacks` and `ddtop signal` on real processes: ranks that cannot report about
themselves.
"""

import json
import os
import signal

import pytest

from ddtop.relay.processes.pyspy import find


def start(world, case, ranks=2):
    """The ranks of one job. Rank 1 is stuck in the requested way."""
    started = [world.start("standing", case, RANK=rank, WORLD_SIZE=ranks) for rank in range(ranks)]
    world.until(
        lambda: [row["state"] for row in world.status()].count("starting") == ranks, 20, "all ranks"
    )
    (world.folder / "go").touch()
    world.until(lambda: "ready" in world.output(started[1])[0], 20, "rank 1 that stands")
    return started


def stacks(world, *words):
    """The exit code and the JSON of `ddtop stacks`."""
    done = world.ddtop("stacks", world.job(), "--json", *words)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def main_of(found, rank):
    """The class that contains that rank's main thread."""
    (one,) = [
        one
        for one in found["groups"]
        if rank in one["ranks"] and one["thread"] == "main" and not one["worker"]
    ]
    return one


def functions(one):
    return [frame["function"] for frame in one["frames"]]


@pytest.mark.smoke
def test_a_rank_that_holds_the_gil_is_read_by_signal_and_the_others_by_their_agents(world):
    started = start(world, "gil", ranks=3)
    world.until(lambda: world.status()[1]["state"] == "silent", 20, "a silent rank")

    code, found = stacks(world, "--signal")

    assert (code, found["unanswered"]) == (0, [])
    assert main_of(found, 1)["method"] == "signal"
    assert functions(main_of(found, 1))[0] == "gil"
    assert (main_of(found, 0)["method"], main_of(found, 0)["ranks"]) == ("agent", [0, 2])
    assert started[1].poll() is None


def test_a_rank_that_waits_for_a_child_shows_the_line(world):
    start(world, "child")

    done = world.ddtop("stacks", world.job(), "--rank", "1")

    assert done.returncode == 0
    assert "standing.py" in done.stdout
    assert "other.wait()" in done.stdout, "its source line"
    assert "child" in done.stdout


def test_a_stopped_rank_is_read_by_py_spy_or_listed_with_the_reason_and_stays_stopped(world):
    started = start(world, "sleeps")
    os.kill(started[1].pid, signal.SIGSTOP)
    world.until(lambda: world.status()[1]["state"] == "stopped", 20, "a stopped rank")

    code, found = stacks(world)

    if code == 0:
        assert find() is not None
        assert main_of(found, 1)["method"] == "py-spy"
    else:
        ((rank, why),) = [(one["rank"], one["why"]) for one in found["unanswered"]]
        assert (code, rank) == (1, 1)
        assert "stopped" in why
    assert world.status()[1]["state"] == "stopped"
    assert main_of(found, 0)["method"] == "agent"


def test_a_rank_in_interpreter_exit_gets_no_signal(world):
    """Its handlers are being removed. A signal that comes after that kills the process."""
    started = start(world, "leaves")
    world.until(lambda: world.status()[1]["state"] in ("silent", "exited"), 20, "a silent rank")

    _, found = stacks(world, "--signal")

    answered = [one for one in found["groups"] if 1 in one["ranks"]]
    if answered:
        assert {one["method"] for one in answered} == {"py-spy"}
    else:
        assert "interpreter exit" in found["unanswered"][0]["why"]
    assert started[1].poll() is None


def test_a_thread_that_outlives_an_exception_is_shown(world):
    start(world, "lingers")

    code, found = stacks(world)

    assert code == 0
    threads = {one["thread"]: one for one in found["groups"] if 1 in one["ranks"]}
    assert "prefetch" in threads


def test_the_programs_own_handlers_work_before_and_after_a_dump(world):
    started = start(world, "handles")

    def seen():
        out, err = world.output(started[1])
        return out.count("SIGUSR1"), out.count("SIGTERM"), err.count("most recent call first")

    for times in (1, 2):
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR2):
            os.kill(started[1].pid, number)
        world.until(
            lambda times=times: seen() == (times, times, times), 20, "answers to three signals"
        )
        assert stacks(world, "--signal")[0] == 0


def test_the_last_stacks_can_be_read_after_the_job_has_ended(world):
    started = start(world, "gil")
    world.until(lambda: world.status()[1]["state"] == "silent", 20, "a silent rank")
    stacks(world, "--signal")
    for one in started:
        one.kill()
    world.until(lambda: world.diagnose()["ended"], 20, "the end")

    _, found = stacks(world)

    assert found["live"] is False
    assert functions(main_of(found, 1))[0] == "gil"
