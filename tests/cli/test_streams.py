"""Commands where standard output is closed or full, and names that were mistyped."""

import os
import subprocess
import sys
import time

import msgspec
import pytest

from ddtop import registry
from ddtop.cli import find_job
from ddtop.cli.errors import CommandError, did_you_mean
from ddtop.demo.catalogue import DEMOS
from ddtop.sim.incidents import SCENARIOS
from tests.present.entries import ended


def run(command, redirection, folder):
    """A shell starts ddtop with its output redirected like this."""
    environment = os.environ | {"XDG_RUNTIME_DIR": str(folder), "HOME": str(folder)}
    line = f"{sys.executable} -m ddtop {command} {redirection}"
    return subprocess.run(
        ["sh", "-c", line],
        check=False,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("command", ["--help", "explain", "explain rank-killed", "jobs --json"])
def test_a_command_whose_output_is_closed_ends_quietly(command, tmp_path):
    done = run(command, ">&-", tmp_path)

    assert done.returncode == 0
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
@pytest.mark.parametrize("command", ["--help", "explain", "explain rank-killed", "jobs --json"])
def test_a_command_whose_output_has_no_room_says_so_in_one_line(command, tmp_path):
    done = run(command, ">/dev/full", tmp_path)

    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1] == (
        "ddtop: the output cannot be written: No space left on device"
    )
    assert "Traceback" not in done.stderr


def test_a_mistyped_name_is_proposed():
    assert did_you_mean("rank-kiled", SCENARIOS) == "; did you mean rank-killed?"
    assert did_you_mean("loader", DEMOS) == "; did you mean loader-stuck?"
    assert did_you_mean("Rank Killed", DEMOS) == "; did you mean rank-killed?"
    assert (
        did_you_mean("xyzzy", DEMOS) == did_you_mean("nope", DEMOS) == did_you_mean("", DEMOS) == ""
    )


@pytest.fixture
def one_that_ended(monkeypatch):
    """No live job, and one that ended five seconds ago."""
    now = time.time_ns()
    one = msgspec.structs.replace(ended("train-1"), ended_unix_ns=now - 5_000_000_000)
    error = registry.UnknownJobError("no live job", [one])

    def none(name, at):
        raise error

    monkeypatch.setattr(registry, "find_job", none)
    monkeypatch.setattr(registry, "read_entries", lambda: [one])
    monkeypatch.setattr("ddtop.cli.routing.from_here", lambda entry, asked_by: entry)
    return one


def test_diagnose_takes_the_job_that_has_just_ended_and_says_so(one_that_ended, capsys):
    assert find_job.find(None, asked_by="diagnose", of_ended=True) is one_that_ended
    assert "no live job; this is train-1, which ended 5 s ago" in capsys.readouterr().err


def test_a_command_that_acts_takes_no_job_that_has_ended(one_that_ended):
    with pytest.raises(CommandError):
        find_job.find(None, asked_by="signal")
    with pytest.raises(CommandError):
        find_job.find("other", asked_by="diagnose", of_ended=True)
