"""`--wait` ends when the launcher of the job has ended before any rank was seen."""

import os
import subprocess
import sys
import time

import pytest
from msgspec.structs import replace

from ddtop import registry
from ddtop.cli import find_job as finding
from ddtop.cli.errors import CommandError
from ddtop.cli.find_job import JUST_ENDED_S, Launchers, entry_of
from ddtop.feeds.outside.jobs import HostProcesses, Process, launchers_of
from tests.cli.commands import finished, write_ended

ON = {"DDTOP": "1", "DDTOP_JOB": "ci"}
OWN = f"ci-{os.getpid()}"
"""Other tests of this host must not see the real processes of this one."""
OWN_PID = 99
TORCHRUN = ("python", "/env/bin/torchrun", "--nproc-per-node", "2", "train.py")


def process(pid, argv, parent=1, environment=ON, **more):
    found = {"python": argv[0] == "python"} | more
    return Process(pid, parent, 0, pid * 10, argv=tuple(argv), environment=environment, **found)


def host(*processes):
    return HostProcesses({one.pid: one for one in processes})


def found_in(*processes, name="ci"):
    return sorted(pid for pid, _ in launchers_of(host(*processes), name, OWN_PID))


def test_the_topmost_process_that_was_started_with_ddtop_is_what_counts():
    shell = process(10, ("bash", "ci.sh"), environment={})
    script = process(11, ("bash", "retry.sh"), parent=10)
    torchrun = process(12, TORCHRUN, parent=11)

    assert found_in(shell, script, torchrun) == [11]


@pytest.mark.parametrize(
    ("argv", "environment"),
    [
        (TORCHRUN, {}),
        (TORCHRUN, {"DDTOP": "0", "DDTOP_JOB": "ci"}),
        (TORCHRUN, {"DDTOP": "1", "DDTOP_JOB": "nightly"}),
        (TORCHRUN, {"DDTOP": "1"}),
        (("tee", "log"), ON),
        (("python", "-m", "ddtop", "exporter"), ON),
        (("python", "-m", "pip", "install", "x"), ON),
    ],
)
def test_what_starts_no_rank_of_this_job_is_no_launcher_of_it(argv, environment):
    assert found_in(process(12, argv, environment=environment)) == []


@pytest.mark.parametrize(
    ("argv", "environment", "name"),
    [
        (TORCHRUN, {"DDTOP": "1"}, "train"),
        (TORCHRUN, {"DDTOP": "1"}, None),
        (("mpirun", "-n", "4", "python", "sim.py"), ON, "ci"),
        (("python", "spawns.py"), ON, "c"),
    ],
)
def test_without_a_name_of_the_job_the_script_gives_it(argv, environment, name):
    assert found_in(process(12, argv, environment=environment), name=name) == [12]


def test_the_shell_in_which_this_command_runs_is_no_launcher():
    """CI sets the variables for all that it starts."""
    shell = process(10, ("bash", "ci.sh"))
    own = process(OWN_PID, ("python", "-m", "ddtop", "watch"), parent=10)

    assert found_in(shell, own, process(12, TORCHRUN, parent=10)) == [12]


@pytest.fixture
def job():
    """A Python that could start ranks; it lives until it is told to end."""
    code = "import sys; sys.stdin.read()"
    started = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        env=os.environ | ON | {"DDTOP_JOB": OWN},
    )
    yield started
    started.kill()
    started.communicate()


def seen(waiting):
    """What is said once the process is in /proc with its environment."""
    end = time.monotonic() + 20
    while not waiting._seen:
        assert time.monotonic() < end
        assert waiting.ended_launcher() is None
    return waiting


def test_a_launcher_that_has_ended_ends_the_wait(home, job, monkeypatch):
    monkeypatch.setattr(finding, "LAUNCHERS_EVERY_S", 0.02)
    monkeypatch.setattr(finding, "LAUNCHER_ENDED_S", 0.1)
    monkeypatch.setattr(finding, "READ_AGAIN_S", 0.02)
    seen(Launchers(OWN))
    finder = pytest.raises(
        CommandError, match=rf"\(pid {job.pid}\), has ended, and no rank was seen"
    )
    real = registry.find_job

    def find_job(name, now):
        # The first look of the wait has seen it.
        if find_job.called:
            job.kill()
            job.wait()
        find_job.called = True
        return real(name, now)

    find_job.called = False
    monkeypatch.setattr(registry, "find_job", find_job)
    began = time.monotonic()
    with finder as raised:
        entry_of(OWN, 60.0)

    assert raised.value.code == 3
    assert time.monotonic() - began < 30


def test_a_launcher_that_lives_does_not_end_the_wait(home, job, monkeypatch):
    monkeypatch.setattr(finding, "LAUNCHERS_EVERY_S", 0.0)
    monkeypatch.setattr(finding, "LAUNCHER_ENDED_S", 0.05)
    waiting = seen(Launchers(OWN))

    assert [waiting.ended_launcher() for _ in range(3)] == [None] * 3


def test_the_last_run_of_the_same_name_is_not_what_is_waited_for(home):
    """A runner of CI keeps its state folder: yesterday's job of that name has ended."""
    write_ended(finished())
    (entry,) = registry.read_entries()

    def ended(seconds):
        at_ns = time.time_ns() - int(seconds * 1e9)
        registry.write_entry(replace(entry, ended_unix_ns=at_ns, heartbeat_unix_ns=at_ns))

    ended(JUST_ENDED_S / 2)
    assert entry_of("train", 1.0).run == entry.run  # it failed at once, before anybody could wait
    ended(2 * JUST_ENDED_S)
    assert entry_of("train").run == entry.run
    with pytest.raises(CommandError, match="no job named train-47 has started since") as raised:
        entry_of("train", 0.3)
    assert raised.value.code == 3
