"""The commands as users and scripts call them: output, stream, exit code."""

import json
import os
import subprocess
import sys

import pytest

from ddtop import registry
from ddtop.follow import engine
from tests.cli.commands import ddtop, ddtop_process, finished, killed, write_ended
from tests.entries import fresh

COMMANDS = ("attach", "demo", "diagnose", "doctor", "jobs", "run", "signal", "stacks", "status")


# -- no job


@pytest.mark.parametrize("command", ["status", "diagnose", "attach"])
def test_without_a_job_a_command_says_how_to_start_one(home, command):
    done = ddtop(command)

    assert (done.returncode, done.stdout) == (3, "")
    assert "no live job found" in done.stderr
    assert "DDTOP=1 torchrun" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_job_lists_those_there_are(home):
    write_ended(finished(), "llama-7b")

    done = ddtop("diagnose", "bert", exits=3)

    assert "no job named bert" in done.stderr
    assert "llama-7b" in done.stderr


def test_an_ambiguous_job_is_a_usage_error(home):
    for name in ("train-1", "train-2"):
        write_ended(finished(), name)

    done = ddtop("diagnose", "train", exits=2)

    assert "train may mean 2 jobs" in done.stderr


def test_without_any_job_the_list_says_how_to_start_one(home):
    assert ddtop("jobs").stdout.startswith("no jobs; start one with: DDTOP=1 torchrun ...\n")
    listed = json.loads(ddtop("jobs", "--json").stdout)
    assert (listed["schema"], listed["jobs"]) == ("ddtop.jobs/1", [])
    assert isinstance(listed["outside"], list)


def test_a_file_that_is_too_large_for_a_job_file_is_counted(home):
    """A large file in the folder must not cost each command megabytes, nor hide a job."""
    home.state.mkdir(mode=0o700)
    (home.state / "large.json").write_text("{" + " " * 70_000 + "}")

    done = ddtop("jobs")

    assert done.stdout.startswith("no jobs; start one with: DDTOP=1 torchrun ...\n")
    assert "not read as job files of this version: 1 in" in done.stderr
    assert "(large.json)" in done.stderr


@pytest.mark.parametrize(
    "words",
    [["nosuch"], ["diagnose", "--nosuch"], ["diagnose", "--for", "x"], ["demo", "--ranks", "1"]],
)
def test_a_usage_error_is_exit_code_2_without_a_traceback(home, words):
    done = ddtop(*words)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("ddtop: ")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_every_command_has_help(command):
    done = ddtop(*filter(None, [command]), "--help")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage:")


def test_the_version_is_the_packages():
    import ddtop as package

    assert ddtop("--version").stdout == f"ddtop, version {package.__version__}\n"


# -- ended jobs


def test_a_job_that_was_killed_is_diagnosed_from_its_last_state(home):
    """The compute node is gone, but its journal is in the shared home folder."""
    write_ended(killed(), reason="signal 9")

    done = ddtop("diagnose", "train", "--json")
    found = json.loads(done.stdout)

    assert (done.returncode, found["schema"]) == (1, "ddtop.diagnose/1")
    assert found["health"] == "critical"
    assert (found["live"], found["ended"]["first_rank"]) == (False, 1)
    assert [(one["kind"], one["ranks"]) for one in found["findings"]] == [("rank-killed", [1])]


def test_a_job_that_finished_is_ok(home):
    write_ended(finished())

    done = ddtop("diagnose", "train-47", "--json")

    assert (done.returncode, json.loads(done.stdout)["health"]) == (0, "ok")


def test_the_readable_part_of_a_damaged_last_state_is_used(home):
    """The disk was full when it was written."""
    write_ended(killed())
    path = registry.last_state_path("train-47", "r1")
    path.write_bytes(path.read_bytes()[:-10])

    done = ddtop("status", "train", "--json", exits=0)

    assert len(json.loads(done.stdout)["ranks"]) == 2


@pytest.mark.parametrize("content", [None, b"", b"not ours", b"ddtop journal 9\n"])
def test_without_a_readable_last_state_there_is_no_contact(home, content):
    write_ended(killed())
    path = registry.last_state_path("train-47", "r1")
    path.unlink() if content is None else path.write_bytes(content)

    done = ddtop("diagnose", "train")

    assert (done.returncode, done.stdout) == (3, "")
    assert "Traceback" not in done.stderr


def test_jobs_lists_live_and_ended_ones(home):
    write_ended(finished(), "old")

    (job,) = json.loads(ddtop("jobs", "--json").stdout)["jobs"]

    assert (job["job"], job["live"], job["world_size"], job["reporting"]) == ("old", False, 2, 0)
    assert "old" in ddtop("jobs").stdout
    assert "finished" in ddtop("jobs").stdout


def test_attach_without_a_terminal_prints_the_table(home):
    """`ddtop attach | less`, a cron job, a CI log."""
    write_ended(finished())

    done = ddtop("attach", "train-47", exits=0)

    assert "no terminal, so here is the status table" in done.stderr
    assert "RANK" in done.stdout


@pytest.fixture
def silent_job(home, monkeypatch):
    """A job with a fresh job file, behind a firewall that drops the packets of its relay."""
    monkeypatch.setattr(engine, "JOIN_S", 0.2)
    entry = fresh(
        sender=registry.host_identity(),
        relay_pid=os.getpid(),
        relay_start_ticks=registry.start_ticks(os.getpid()),
        port=1,
    )
    registry.write_entry(entry)


def test_a_job_whose_relay_does_not_answer_is_unknown(silent_job):
    done = ddtop("diagnose", "train")

    assert (done.returncode, done.stderr) == (4, "")
    assert "does not answer on port 1, so the state of the job is not known" in done.stdout
    assert "ok" not in done.stdout.split()


@pytest.mark.parametrize("words", [("attach", "train"), ("attach",), ()])
def test_without_a_terminal_attach_has_the_exit_code_of_status(silent_job, words):
    """A script that checks only the exit code must not mistake an unknown job for a healthy one."""
    done, status = ddtop(*words), ddtop("status", "train")

    assert (done.returncode, status.returncode) == (4, 4)
    assert "no terminal, so here is the status table" in done.stderr
    assert "RANK" in done.stdout


def test_an_unusable_state_folder_is_reported_with_the_next_step(home):
    home.state.write_text("")

    done = ddtop("jobs", exits=3)

    assert "set DDTOP_STATE to" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_that_goes_away_is_no_error(home):
    """`ddtop jobs | head -1`."""
    for number in range(40):
        write_ended(finished(), f"job-{number:02d}-" + "x" * 40)
    done = subprocess.run(
        ["/bin/sh", "-c", f"{sys.executable} -m ddtop jobs | head -1"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stderr == ""
    assert done.stdout.startswith("JOB")


# -- run


SHOW = """
import os, sys
print(os.environ.get("DDTOP"), os.environ.get("DDTOP_JOB"), sys.argv[1:])
sys.exit(7)
"""


@pytest.mark.parametrize("separator", [[], ["--"]])
def test_run_becomes_the_command_with_ddtop_set(home, separator):
    done = ddtop_process(
        "run", "--job", "llama", *separator, sys.executable, "-c", SHOW, "--lr", "1", "-h"
    )

    assert (done.returncode, done.stdout) == (7, "1 llama ['--lr', '1', '-h']\n")


def test_run_of_a_command_that_is_not_there_is_a_usage_error(home):
    done = ddtop("run", "nosuchcommand")

    assert (done.returncode, done.stderr) == (2, "ddtop: nosuchcommand: command not found\n")


def test_a_command_in_a_shell_with_ddtop_set_does_not_watch_itself(home):
    """The user had typed `export DDTOP=1` in the shell."""
    done = ddtop("jobs", DDTOP="1", RANK="0", WORLD_SIZE="1")

    assert (done.returncode, done.stderr) == (0, "")
    assert list(home.runtime.iterdir()) == []


# -- doctor


def test_doctor_says_a_line_for_every_check(home):
    done = ddtop("doctor")

    marks = {line.split()[1]: line.split()[0] for line in done.stdout.splitlines()}
    assert {"ddtop", "torch", "MPI", "key", "ports", "exits"} <= set(marks)
    assert marks["key"] == "ok"
    assert (done.returncode == 1) == ("bad" in marks.values())


def test_doctor_fails_if_others_can_read_the_key(home):
    registry.secret()
    (home.state / "key").chmod(0o644)

    done = ddtop("doctor", exits=1)

    assert "must be yours and mode 0600" in done.stdout
