"""Ranks that start children with process groups: which process is the rank."""

import pytest

pytestmark = pytest.mark.torch


def pid_in(world, name):
    """The pid in a file that the program writes."""
    path = world.folder / name
    world.until(path.exists, 90.0, f"file {name}")
    return int(path.read_text())


@pytest.mark.parametrize("how", ["scorer", "spawned"])
def test_a_child_with_a_group_of_its_own_is_not_the_rank(world, how):
    """It has inherited RANK=0, and computes a little at a time while the others wait."""
    launcher = world.torchrun("with_child", str(world.folder), how, ranks=3)
    rank = pid_in(world, "rank")
    child = pid_in(world, "child")
    warned = world.finding("not-in-collective")

    assert (warned["severity"], warned["ranks"]) == ("warning", [0])
    assert f"waiting for its child (pid {child})" in warned["summary"]
    assert world.status()[0]["pid"] == rank
    (world.folder / "release").touch()
    assert world.done(launcher) == 0


def test_a_server_that_had_its_group_first_is_not_the_rank(world):
    launcher = world.torchrun("with_child", str(world.folder), "server", ranks=2)
    rank = pid_in(world, "rank")

    def moves():
        ranks = world.status()
        return [one["state"] for one in ranks] == ["running"] * 2 and ranks[0]["pid"] == rank

    world.until(moves, 30.0, "running rank 0 that is the trainer")
    assert world.diagnose()["findings"] == []
    (world.folder / "release").touch()
    assert world.done(launcher) == 0


def test_a_child_that_joins_the_group_of_the_job_is_a_second_process_of_its_rank(world):
    world.torchrun("with_child", str(world.folder), "twin", ranks=3)
    rank, child = pid_in(world, "rank"), pid_in(world, "child")

    finding = world.finding("duplicate-rank")

    assert (finding["severity"], finding["ranks"]) == ("critical", [0])
    assert finding["victims"] == [1, 2]
    assert f"(pids {rank}, {child})" in finding["summary"]
    assert f"rank 0 is waiting for its child (pid {child})" in finding["summary"]


def test_the_program_that_a_carrier_of_the_variables_starts_is_the_rank(world):
    launcher = world.torchrun("with_child", str(world.folder), "wrapped", ranks=2)
    rank = pid_in(world, "rank")

    world.until(lambda: world.status()[0]["pid"] == rank, 30.0, "rank 0 that is the training")
    assert world.done(launcher) == 0
