"""A watched program behaves as it does unwatched: its handlers, hooks, children, output and exit are its own.

These ranks are ranks by their environment and need no torch.
"""

from __future__ import annotations

import os
import signal
import time

import pytest

from ddtop import registry

pytestmark = pytest.mark.usefixtures("hook_is_installed")
RANK = {"RANK": 0, "WORLD_SIZE": 1, "DDTOP_QUIET": 1}


def outcome(world, case, **variables):
    """(exit code, stdout, stderr) of the program watched and unwatched."""
    watched = world.start("polite", case, **RANK, **variables)
    plain = world.start("polite", case, ddtop=False, **RANK, **variables)
    return [(world.done(process), *world.output(process)) for process in (watched, plain)]


@pytest.mark.parametrize(
    "case",
    ["handlers", "waits", "raises", "raises_in_thread", "quiet", "terminated", "reads"],
)
def test_it_does_what_it_does_unwatched(world, case):
    """Exit code, stdout and stderr are the same, to the byte."""
    watched, plain = outcome(world, case)

    assert watched == plain


def test_the_programs_own_handlers_get_their_signals(world):
    watched, _ = outcome(world, "handlers")

    assert "got ['SIGUSR1', 'SIGTERM', 'SIGCHLD', 'SIGALRM']" in watched[1]


def test_os_wait_sees_no_child_of_ours(world):
    """A launcher script that waits for "any child" took our relay for its worker."""
    watched, _ = outcome(world, "waits")

    assert watched[1].splitlines() == ["waited True 3", "no other child"]


def test_a_fork_in_a_rank_is_not_the_rank(world):
    watched, plain = outcome(world, "forks")

    assert watched[0] == 0
    assert watched[1] == plain[1] == "40 " * 20 + "True\n"


def test_the_one_line_on_stderr_says_what_to_type(world):
    process = world.start("polite", "quiet", RANK=0, WORLD_SIZE=1)
    assert world.done(process) == 0

    out, err = world.output(process)

    assert out == "out\n"
    assert err == f"ddtop: watching polite-{process.pid}; to look: ddtop attach polite-{process.pid}\nerr\n"


def test_only_rank_0_says_it(world):
    process = world.start("polite", "quiet", RANK=1, WORLD_SIZE=2)
    assert world.done(process) == 0

    assert world.output(process) == ("out\n", "err\n")


def test_the_exit_is_not_delayed(world):
    """Half a second a process is half an hour a month for somebody who runs small scripts. A wait of ours would be in each run,
    that of a loaded machine is not: the shortest count."""
    took: dict[bool, list[float]] = {True: [], False: []}
    while len(took[True]) < 8 and (not took[True] or min(took[True]) - min(took[False]) >= 0.7):
        for watched in (True, False):
            began = time.monotonic()
            world.done(world.start("polite", "exits", ddtop=watched, **RANK))
            took[watched].append(time.monotonic() - began)

    assert min(took[True]) - min(took[False]) < 0.7


def test_a_full_or_unusable_state_folder_does_not_stop_the_program(world):
    """A quota was reached: the job must train, and say once why nobody can look."""
    blocked = world.folder / "file"
    blocked.write_text("")
    process = world.start("polite", "quiet", RANK=0, WORLD_SIZE=1, DDTOP_RUNTIME=blocked / "below")

    assert world.done(process) == 0

    out, err = world.output(process)
    assert out == "out\n"
    assert err.startswith("ddtop is off in this job: cannot make the folder")
    assert err.count("\n") == 2


def test_a_rank_outlives_its_relay_and_gets_another(world):
    """The out-of-memory killer took the relay first."""
    process = world.start("polite", "stays", **RANK)
    first = world.relay()
    assert process.pid in [row["pid"] for row in world.until(world.status, 20, "status")]

    os.kill(first, signal.SIGKILL)

    second = world.until(
        lambda: next((one.relay_pid for one in registry.read_entries() if one.relay_pid != first), None), 30, "relay"
    )
    assert process.poll() is None
    assert world.until(world.status, 20, "status of the new relay")[0]["pid"] == process.pid
    assert second in world.processes()


def test_the_relay_is_nobodys_child_and_holds_nothing_of_the_job(world):
    """`torchrun | tee log` hung for ever: the relay had inherited the pipe."""
    process = world.start("polite", "stays", **RANK, OMP_PROC_BIND="close", LD_PRELOAD="")
    relay = world.relay()

    with open(f"/proc/{relay}/stat") as file:
        parent, group, session = file.read().rpartition(")")[2].split()[1:4]
    descriptors = {os.readlink(f"/proc/{relay}/fd/{number}") for number in (0, 1, 2)}
    with open(f"/proc/{relay}/environ", "rb") as file:
        names = {pair.partition(b"=")[0] for pair in file.read().split(b"\0")}

    assert int(parent) != process.pid
    assert os.getsid(process.pid) != int(session)
    assert os.getpgid(process.pid) != int(group)
    assert descriptors == {"/dev/null"}
    assert os.readlink(f"/proc/{relay}/cwd") == "/"
    assert not {b"RANK", b"WORLD_SIZE", b"DDTOP", b"OMP_PROC_BIND", b"OMP_NUM_THREADS", b"LD_PRELOAD"} & names


def test_a_killed_rank_leaves_no_page(world):
    process = world.start("polite", "stays", RANK=0, WORLD_SIZE=1, DDTOP_QUIET=1, DDTOP_LINGER_S=0.2)
    world.relay()
    assert sorted(path.suffix for path in world.pages()) == [".page", ".stacks"]

    os.kill(process.pid, signal.SIGKILL)
    process.wait()

    world.until(lambda: not world.pages(), 10, "removal of the page")
    world.until(lambda: not world.processes(), 10, "end of the relay")
    assert list(world.home.runtime.glob("*.sock")) + list(world.home.runtime.glob("*.lock")) == []


def test_a_relay_that_was_told_to_end_leaves_a_last_state(world):
    """The scheduler ends the step: SIGTERM to everybody, then the post-mortem from the login node."""
    process = world.start("polite", "stays", **RANK)
    world.until(world.status, 20, "status")
    relay = world.relay()

    os.kill(process.pid, signal.SIGTERM)
    os.kill(relay, signal.SIGTERM)

    world.until(lambda: not world.processes(), 10, "end")
    after = world.until(lambda: (now := world.diagnose())["health"] and now, 10, "a last state")
    assert after["live"] in (True, False)
    assert after["world_size"] == 1
