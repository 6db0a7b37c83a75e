"""A watched program behaves as it does unwatched: ddtop does not change its handlers, hooks,
children, output and exit.

These ranks are ranks by their environment and need no torch.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from ddtop import registry
from ddtop.link.viewer_side import admits

pytestmark = pytest.mark.usefixtures("hook_is_installed")
RANK = {"RANK": 0, "WORLD_SIZE": 1, "DDTOP_QUIET": 1}
WAITS_FOR_ALL = """
import os, time
print("pid", os.getpid(), flush=True)
while not open("/proc/1/task/1/children").read():
    time.sleep(0.01)
print("a relay is a child", flush=True)
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
print("none is left", flush=True)
print(os.readlink("/proc/self/ns/pid").strip("pid:[]"))
"""
NO_MORE_THREADS = """
import _thread, site
start = _thread.start_new_thread
def refuse(*_words, **_more):
    raise RuntimeError("can't start new thread")
_thread.start_new_thread = refuse
site.main()
print("goes on")
"""


def outcome(world, case, **variables):
    """(exit code, stdout, stderr) of the program watched and unwatched."""
    watched = world.start("polite", case, **RANK, **variables)
    plain = world.start("polite", case, ddtop=False, **RANK, **variables)
    return [(world.done(process), *world.output(process)) for process in (watched, plain)]


@pytest.mark.parametrize(
    ("case", "printed"),
    [
        ("handlers", "got ['SIGUSR1', 'SIGTERM', 'SIGCHLD', 'SIGALRM']"),
        # A launcher script that waits for "any child" mistook our relay for its worker.
        ("waits", "waited True 3\nno other child\n"),
        ("raises", "mine ValueError bad sample 7\n"),
        ("raises_in_thread", "goes on\n"),
        ("quiet", "out\n"),
        ("terminated", ""),
        ("reads", "b'x'\n"),
        # SIGTERM was delivered to our thread, which did not block it: exit code 143.
        ("blocks", f"\n{int(signal.SIGRTMAX)} True\nsaving checkpoint\n"),
        ("joins", "joined all\n"),
        ("forks", "40 " * 20 + "True\n"),
    ],
)
def test_it_does_what_it_does_unwatched(world, case, printed):
    """Exit code, stdout and stderr are the same, to the byte."""
    watched, plain = outcome(world, case)

    assert watched == plain
    assert printed in watched[1]
    assert "False" not in watched[1]


@pytest.mark.parametrize(
    ("wanted", "more"), [("", 1 << signal.SIGRTMIN + 5 - 1), ("off", 0)], ids=["unset", "off"]
)
def test_one_more_signal_is_caught_and_no_other_is_caught_blocked_or_ignored(world, wanted, more):
    watched, plain = (
        dict(line.split(":\t") for line in out.splitlines())
        for _, out, _ in outcome(world, "masks", DDTOP_SIGNAL=wanted)
    )

    assert int(watched.pop("SigCgt"), 16) ^ int(plain.pop("SigCgt"), 16) == more
    assert watched == plain


def test_a_forked_child_does_not_time_the_collector(world):
    """The timer writes to the state page, and that is the parent's."""
    program = world.folder / "forks.py"
    program.write_text(
        "import gc, os\n"
        "pid = os.fork()\n"
        "if not pid: os._exit(len(gc.callbacks))\n"
        "print(len(gc.callbacks), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    process = world.start_command([sys.executable, str(program)], **RANK)

    assert world.done(process) == 0
    assert world.output(process)[0] == "1 0\n"


def test_threading_does_not_know_our_thread_however_long_it_has_worked(world):
    """Programs join all threads of `threading.enumerate()`. A call of logging in our thread would
    list that thread as Dummy-1.
    """
    process = world.start("polite", "lists", **RANK)
    world.until(world.status, 20, "status")
    assert len(os.listdir(f"/proc/{process.pid}/task")) == 2

    process.send_signal(signal.SIGUSR1)

    assert world.done(process) == 1
    assert world.output(process)[1] == "['MainThread']\n"


def test_where_no_thread_can_be_made_the_program_goes_on_and_ends_as_ever(world):
    """With `ulimit -u`, or pids.max, the program's output ended with "cannot join thread before it
    is started".
    """
    script = world.folder / "early.py"
    script.write_text(NO_MORE_THREADS)
    process = world.start_command(
        [sys.executable, "-S", str(script)], RANK=0, WORLD_SIZE=1, DDTOP_LINGER_S=0
    )

    assert world.done(process) == 0
    out, err = world.output(process)
    assert out == "goes on\n"
    assert err == "ddtop is off in this rank: RuntimeError: can't start new thread\n"


def test_the_one_line_on_stderr_says_what_to_type(world):
    """As soon as a relay answers. A program that has ended by then says nothing."""

    def line_of(process):
        name = f"polite-{process.pid}"
        return f"ddtop: watching {name}; to look: ddtop attach {name}\n"

    stays = world.start("polite", "stays", RANK=0, WORLD_SIZE=1)
    assert world.until(lambda: world.output(stays)[1], 30, "line") == line_of(stays)

    ends = world.start("polite", "quiet", RANK=0, WORLD_SIZE=1)
    assert world.done(ends) == 0
    out, err = world.output(ends)
    assert (out, err.removeprefix(line_of(ends))) == ("out\n", "err\n")


def test_only_rank_0_says_it(world):
    process = world.start("polite", "quiet", RANK=1, WORLD_SIZE=2)
    assert world.done(process) == 0

    assert world.output(process) == ("out\n", "err\n")


def test_the_exit_is_not_delayed(world):
    """Half a second per process is half an hour a month for a user of small scripts. A wait of ours
    would be in every run, a wait for a loaded machine is not, so the shortest run counts.
    """
    took: dict[bool, list[float]] = {True: [], False: []}
    while len(took[True]) < 8 and (not took[True] or min(took[True]) - min(took[False]) >= 0.7):
        for watched in (True, False):
            began = time.monotonic()
            world.done(world.start("polite", "exits", ddtop=watched, **RANK))
            took[watched].append(time.monotonic() - began)

    assert min(took[True]) - min(took[False]) < 0.7


def test_a_full_or_unusable_state_folder_does_not_stop_the_program(world):
    """A quota was reached. The job must train, and report once why it cannot be watched."""
    blocked = world.folder / "file"
    blocked.write_text("")
    process = world.start("polite", "quiet", RANK=0, WORLD_SIZE=1, DDTOP_RUNTIME=blocked / "below")

    assert world.done(process) == 0

    out, err = world.output(process)
    assert out == "out\n"
    assert err.startswith("ddtop is off in this job: cannot make the folder")
    assert err.count("\n") == 2


def test_a_rank_outlives_its_relay_and_gets_another(world):
    """The OOM killer ended the relay first. The agent's thread has all signals blocked, and a mask
    survives exec: the relay that it starts must be free to end.
    """
    process = world.start("polite", "stays", **RANK)
    first = world.relay()
    assert process.pid in [row["pid"] for row in world.until(world.status, 20, "status")]

    os.kill(first, signal.SIGKILL)

    second = world.until(
        lambda: next(
            (one.relay_pid for one in registry.read_entries() if one.relay_pid != first), None
        ),
        30,
        "relay",
    )
    assert process.poll() is None
    assert world.until(world.status, 20, "status of the new relay")[0]["pid"] == process.pid
    assert second in world.processes()
    with open(f"/proc/{second}/status") as file:
        assert [int(line.split()[1], 16) for line in file if line.startswith("SigBlk")] == [0]


def test_a_key_that_was_rotated_opens_nothing_and_the_job_goes_on(world):
    """The key was stolen. A holder of the old key is refused within seconds, and no job has to be
    restarted.
    """
    process = world.start("polite", "stays", **RANK)
    first = world.relay()
    world.until(world.status, 20, "status")
    old = registry.secret()

    done = world.ddtop("key", "rotate")

    assert (done.returncode, "restarts with the new key" in done.stdout) == (
        0,
        True,
    ), done.stderr
    second = world.until(
        lambda: next((one for one in registry.read_entries() if one.relay_pid != first), None),
        30,
        "another relay",
    )
    assert registry.secret() != old
    assert world.until(world.status, 20, "status with the new key")[0]["pid"] == process.pid
    assert not admits(*second.endpoint(), old, 5.0)
    assert admits(*second.endpoint(), registry.secret(), 5.0)
    assert process.poll() is None


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
    assert (
        not {b"RANK", b"WORLD_SIZE", b"DDTOP", b"OMP_PROC_BIND", b"OMP_NUM_THREADS", b"LD_PRELOAD"}
        & names
    )


def test_a_program_that_is_pid_1_and_waits_for_all_its_children_goes_on(world):
    """In a container the kernel makes our relay a child of the program: `while True: os.wait()`
    never ended.
    """
    script, began = world.folder / "first.py", time.time()
    script.write_text(WAITS_FOR_ALL)
    process = world.start_command(
        ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, str(script)], **RANK
    )
    code = world.done(process)
    out, err = world.output(process)
    if "unshare" in err:
        pytest.skip("no pid namespace can be made here")

    *lines, namespace = out.splitlines()
    assert (code, lines) == (0, ["pid 1", "a relay is a child", "none is left"])
    # The relay ended together with the namespace. The page and the file for stacks would stay in a
    # /dev/shm that the host shares, and the kernel reuses a namespace's number.
    files = Path("/dev/shm").glob(f"ddtop-pages-*-{namespace}/1-*")
    assert [file for file in files if file.stat().st_mtime >= began] == []


def test_a_killed_rank_leaves_no_page(world):
    process = world.start(
        "polite", "stays", RANK=0, WORLD_SIZE=1, DDTOP_QUIET=1, DDTOP_LINGER_S=0.2
    )
    world.relay()
    assert sorted(path.suffix for path in world.pages()) == [".page", ".stacks"]

    os.kill(process.pid, signal.SIGKILL)
    process.wait()

    world.until(lambda: not world.pages(), 10, "removal of the page")
    world.until(lambda: not world.processes(), 10, "end of the relay")
    assert list(world.home.runtime.glob("*.sock")) + list(world.home.runtime.glob("*.lock")) == []


def test_a_relay_that_was_told_to_end_leaves_a_last_state(world):
    """The scheduler ends the step with SIGTERM for all processes. Then a user examines the job from
    the login node.
    """
    process = world.start("polite", "stays", **RANK)
    world.until(world.status, 20, "status")
    relay = world.relay()

    os.kill(process.pid, signal.SIGTERM)
    os.kill(relay, signal.SIGTERM)

    world.until(lambda: not world.processes(), 10, "end")
    done = world.ddtop("diagnose", world.job(), "--json")
    after = json.loads(done.stdout)
    # If the relay ended first, no relay saw how the rank ended. Then the job is not called ok.
    assert (after["health"], done.returncode) in (("ok", 0), ("critical", 1), ("unknown", 4))
    assert after["world_size"] == 1
