"""Real training jobs with real faults, examined from outside with the commands that people type."""

import json
import os
import signal
from pathlib import Path

import pytest

from ddtop.relay.processes.pyspy import find
from tests.ports import free_port

pytestmark = pytest.mark.torch


def plain(world, *words, ranks=2):
    """One process a rank, started from shells without a launcher."""
    shared = {"WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    return [world.start("train", *words, RANK=rank, **shared) for rank in range(ranks)]


def test_a_healthy_torchrun_job_is_ok_is_stopped_goes_on_and_is_killed(world):
    """One job's life: no finding; Ctrl-Z on one rank; fg; then kill -9 on a rank, and torchrun's
    SIGTERM to the rest.
    """
    launcher = world.torchrun("train", "none")
    healthy = world.moving(10)
    assert (healthy["health"], healthy["findings"], healthy["world_size"]) == ("ok", [], 2)
    assert healthy["job"].startswith("train-")
    rows = world.status()
    assert [row["rank"] for row in rows] == [0, 1]
    assert {row["state"] for row in rows} <= {"running", "waiting"}
    assert all(row["iteration"] > 10 and row["place"]["file"].endswith("train.py") for row in rows)

    os.kill(rows[1]["pid"], signal.SIGSTOP)
    stopped = world.finding("rank-stopped", 20)
    assert (stopped["severity"], stopped["ranks"], stopped["victims"]) == ("critical", [1], [0])
    assert stopped["advice"] == f"let it continue: kill -CONT {rows[1]['pid']}"

    os.kill(rows[1]["pid"], signal.SIGCONT)
    world.until(lambda: not world.diagnose(2.5)["findings"], 20, "silence after SIGCONT")

    os.kill(rows[0]["pid"], signal.SIGKILL)
    world.done(launcher, 60)
    ended = world.until(lambda: (now := world.diagnose())["ended"] and now, 20, "an end")
    assert (ended["live"], ended["ended"]["first_rank"]) == (False, 0)
    assert [(one["kind"], one["ranks"]) for one in ended["findings"]] == [("rank-killed", [0])]
    assert "SIGKILL" in ended["findings"][0]["summary"]


@pytest.mark.smoke
def test_a_rank_that_misses_a_collective_is_named_with_its_place(world):
    """This is the main purpose of ddtop."""
    world.torchrun("train", "stands")

    finding = world.finding("not-in-collective", 60)

    assert (finding["severity"], finding["ranks"], finding["victims"]) == ("critical", [1], [0])
    assert "wait_for_licence (train.py:" in finding["summary"]
    assert "rank 0 waits for it in all_reduce #21 of default_pg" in finding["summary"]
    assert (finding["op"], finding["seq"]) == ("all_reduce", 21)


@pytest.mark.skipif(find() is None, reason="py-spy is not installed")
def test_a_hang_of_a_job_without_ddtop_is_named_from_outside(world):
    launcher = world.torchrun("train", "stands", ddtop=False)

    def named():
        done = world.ddtop("diagnose", "--pid", str(launcher.pid), "--json")
        found = json.loads(done.stdout)["findings"] if done.stdout else []
        # On a busy machine a rank may be late before that: it imports a part of torch.
        return [one for one in found if "wait_for_licence (train.py:" in one["summary"]]

    (finding,) = world.until(named, 90.0, "a finding from outside")

    assert (finding["kind"], finding["severity"]) == ("not-in-collective", "critical")
    assert (finding["ranks"], finding["victims"]) == ([1], [0])


@pytest.mark.smoke
def test_the_rank_that_raised_is_named_and_not_its_victims(world):
    launcher = world.torchrun("train", "raises")
    assert world.done(launcher, 60) == 1

    found = world.until(lambda: (now := world.diagnose())["ended"] and now, 20, "an end")

    (finding,) = found["findings"]
    assert finding["severity"] == "critical"
    assert finding["kind"] == "rank-crashed"
    assert finding["ranks"] == [1]
    assert "rank 1 raised ValueError: bad sample 7 at train.py:" in finding["summary"]
    assert found["ended"]["first_rank"] == 1


def test_plain_processes_are_one_job_and_a_lingering_crash_is_named(world):
    """No launcher: two shells with RANK and WORLD_SIZE. The crashed process stays, held by a
    thread.
    """
    processes = plain(world, "lingers")

    finding = world.finding("rank-crashed", 60)

    assert finding["ranks"] == [1]
    assert "raised KeyError: 'lost'" in finding["summary"]
    assert world.diagnose()["world_size"] == 2
    assert {row["pid"] for row in world.status()} == {process.pid for process in processes}


def test_an_exit_code_is_reported_from_outside(world):
    processes = plain(world, "exits")
    assert world.done(processes[1], 40) == 7

    finding = world.finding("rank-crashed", 20)

    assert finding["ranks"] == [1]
    assert finding["summary"].startswith("rank 1 ended with exit code 7")


def test_a_rank_that_finishes_first_while_others_need_it_left_early(world):
    """Uneven inputs."""
    processes = plain(world, "leaves")
    world.done(processes[1], 40)

    finding = world.finding("left-early", 40)

    assert (finding["severity"], finding["ranks"], finding["victims"]) == ("critical", [1], [0])


def test_another_operation_on_one_rank_is_a_mismatch(world):
    plain(world, "broadcasts")

    finding = world.finding("collective-mismatch", 60)

    assert (finding["severity"], finding["seq"]) == ("critical", 21)
    assert "rank 0: all_reduce of 1,000 float" in finding["summary"]
    assert "rank 1: broadcast of 1,000 float" in finding["summary"]


def test_another_size_on_one_rank_is_a_mismatch_though_one_side_has_passed(world):
    """gloo accepts the smaller tensor, so that rank is one collective ahead. The frames alone
    mislead.
    """
    plain(world, "differs")

    finding = world.finding("collective-mismatch", 60)

    assert (finding["severity"], finding["op"], finding["seq"]) == ("critical", "all_reduce", 21)
    assert "rank 0: all_reduce of 4,000,000 float" in finding["summary"]
    assert "rank 1: all_reduce of 8,000,000 float" in finding["summary"]


def test_c_code_that_holds_the_gil_is_reported_from_outside(world):
    """The agent is silent and the process lives. Only the relay can report it."""
    plain(world, "freezes")

    finding = world.finding("interpreter-frozen", 60)

    assert (finding["severity"], finding["ranks"], finding["victims"]) == ("critical", [1], [0])
    assert "train.py" in finding["summary"]
    # The relay has looked by itself meanwhile, and has not ended the sleep.
    (pid,) = [one["pid"] for one in world.status() if one["rank"] == 1]
    assert "nanosleep" in Path(f"/proc/{pid}/wchan").read_text()


def test_ctrl_c_is_a_cancelled_job_and_nobody_is_blamed(world):
    launcher = world.torchrun("train", "none")
    world.moving(5)
    launcher.send_signal(signal.SIGINT)
    world.done(launcher, 60)

    ended = world.until(lambda: (now := world.diagnose())["ended"] and now, 20, "an end")

    assert (ended["health"], ended["ended"]["reason"]) == ("ok", "cancelled")
    assert [one["severity"] for one in ended["findings"]] == ["info"]


def test_ranks_of_mp_spawn_are_seen(world):
    """No process has RANK. A process that calls init_process_group is a rank, whatever its parent
    is.
    """
    process = world.start("spawned", str(world.folder / "store"), "none")

    def both():
        rows = world.status()
        return (
            rows
            if [row["state"] in ("running", "waiting") for row in rows] == [True, True]
            else None
        )

    rows = world.until(both, 60, "two ranks that run")
    assert [row["rank"] for row in rows] == [0, 1]
    assert len({row["pid"] for row in rows} | {process.pid}) == 3
    assert world.job().startswith("spawned-")


def test_an_exception_in_mp_spawn_is_named_though_no_hook_sees_it(world):
    """mp.spawn catches what its function raises, and sends the traceback to the parent through a
    pipe.
    """
    launcher = world.start("spawned", str(world.folder / "store"), "raises")
    assert world.done(launcher, 60) == 1

    finding = world.finding("rank-crashed", 20)

    assert finding["ranks"] == [1]
    assert "rank 1 raised ValueError: bad sample 7 at spawned.py:" in finding["summary"]


def test_after_a_job_that_ended_well_nothing_is_left(world):
    """People uninstalled other tools because these left pages in /dev/shm, sockets, locks and a
    relay that lives for ever.
    """
    launcher = world.torchrun("train", "none", "60", DDTOP_LINGER_S=4)
    world.relay()
    assert len(world.processes()) >= 3
    assert world.done(launcher, 60) == 0

    world.until(lambda: not world.processes(), 20, "end of all processes")

    assert world.pages() == []
    assert [path.name for path in world.home.runtime.iterdir()] == []
    after = world.diagnose()
    assert (after["live"], after["health"], after["findings"]) == (False, "ok", [])
    assert after["ended"]["reason"] == "all ranks finished"


def test_torch_compile_has_the_same_graphs_with_and_without_ddtop(world):
    """A hook that breaks the graph would cost more than the tool is worth."""
    without = world.start("compiled", ddtop=False)
    assert world.done(without, 120) == 0
    watched = world.start(
        "compiled", RANK=0, WORLD_SIZE=1, MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port()
    )
    assert world.done(watched, 120) == 0

    assert world.output(watched)[0] == world.output(without)[0]
    assert "graphs" in world.output(watched)[0]
