"""Runs ddtop commands, and makes ended jobs that the commands find."""

import os
import subprocess
import sys
import tempfile

import pytest

from ddtop import folders, journal, registry
from ddtop.__main__ import main
from tests.entries import left
from tests.jobs import trained


def ddtop(*words, exits=None, **variables):
    """Runs a command in this process; a new one would take longer than most of these tests.

    Its standard input is empty and its output goes to files, so it has no terminal. `exits`: the
    exit code that it must have.
    """
    with (
        pytest.MonkeyPatch.context() as patch,
        open(os.devnull) as nothing,
        tempfile.TemporaryFile("w+", encoding="utf-8", newline="") as out,
        tempfile.TemporaryFile("w+", encoding="utf-8", newline="") as err,
    ):
        before = dict(os.environ)
        patch.setattr(sys, "argv", ["ddtop", *map(str, words)])
        patch.setattr(folders, "_patience_s", None)
        # The width is that of the stream that Python began with.
        patch.setattr(sys, "__stdout__", out)
        for name, stream in (("stdin", nothing), ("stdout", out), ("stderr", err)):
            patch.setattr(sys, name, stream)
        try:
            _set_environment(_without_job(variables))
            with pytest.raises(SystemExit) as left:
                main()
        finally:
            _set_environment(before)
        done = subprocess.CompletedProcess(words, left.value.code or 0, _text(out), _text(err))
    assert exits in (None, done.returncode), (done.returncode, done.stdout, done.stderr)
    return done


def _set_environment(variables):
    for name in set(os.environ) - set(variables):
        del os.environ[name]
    os.environ.update(variables)


def _without_job(variables):
    """This environment, in which no job is named, with more variables."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith("DDTOP_J")
    } | variables


def _text(stream):
    stream.seek(0)
    return stream.read()


def ddtop_process(*words, **variables):
    """Runs a command as a process of its own: it replaces its process, or a test ends it."""
    return subprocess.run(
        [sys.executable, "-m", "ddtop", *map(str, words)],
        env=_without_job(variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def write_ended(job, name="train-47", reason="finished"):
    """The job file and the last state of a job that ended."""
    entry = left(name, reason=reason, world_size=job.world_size)
    registry.write_entry(entry)
    journal.write(registry.last_state_path(name, "r1"), job.frames)
    return entry


def finished():
    job = trained(2)
    for rank in job.ranks:
        rank.ends(0)
    return job.passes(1)


def killed():
    job = trained(2)
    job.ranks[1].ends(signal=9)
    job.ranks[0].ends(signal=15, later_s=0.5)
    return job.passes(1)
