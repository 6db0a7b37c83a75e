"""This ddtop and the one before it, on both sides of ssh: after an upgrade on one of two hosts, a
job that runs can still be looked at.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import hosts
from tests.hosts import ROOT

BEFORE, OTHER_SCHEMA = "6fd3ca47", "249e4c7"
"""The commit that is taken for the release before this one, and one with another schema."""
ANSWER_S = 60.0


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """A folder with the package of that release."""
    return unpacked(BEFORE, tmp_path_factory.mktemp("before"))


def unpacked(commit, folder):
    archive = subprocess.run(
        ["git", "archive", commit, "ddtop"], cwd=ROOT, capture_output=True, check=False
    )
    if archive.returncode:
        pytest.skip(f"{commit} is not in this clone: {archive.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    return folder


class Viewer:
    """The ddtop in `here`, for a job that runs with the one in `there`."""

    def __init__(self, world, folder: Path, here: Path, there: Path) -> None:
        self.world, self._here = world, here
        host = hosts.host(hosts.FAKE, folder / "there", world.home.state, world.home.runtime)
        self._environment = {
            **world.environment,
            **host.environment,
            "DDTOP_REMOTE": host.says(root=there),
            "PYTHONPATH": str(here),
        }
        world.torchrun("train", "none", PYTHONPATH=there)
        world.job()

    def _start(self, *words):
        return subprocess.Popen(
            [sys.executable, "-m", "ddtop", *words, "--ssh", "there"],
            # With -m, the folder in which it is started comes before PYTHONPATH.
            cwd=self._here,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def says(self, *words):
        """What a command prints."""
        process = self._start(*words)
        out, err = process.communicate(timeout=ANSWER_S)
        assert process.returncode in (0, 1), (out, err)
        return out

    def until_both_move(self):
        """Wait until both ranks make steps."""

        def move():
            ranks = json.loads(self.says("status", "--json"))["ranks"]
            return [one["iteration"] or 0 for one in ranks] > [2, 2] or None

        self.world.until(move, ANSWER_S, "two ranks that make steps")

    def watching(self):
        """`watch`, which reads the records here; a pipe with a line for each event."""
        return self._start("watch", "--json")


@pytest.mark.torch
def test_this_ddtop_looks_at_a_job_of_the_one_before_it(world, tmp_path, before):
    viewer = Viewer(world, tmp_path, ROOT, before)
    viewer.until_both_move()
    watch = viewer.watching()
    joined = json.loads(watch.stdout.readline())
    sent = viewer.says("signal", viewer.world.job(), "--rank", "1", "KILL", "--yes")
    events = [json.loads(line) for line in watch.communicate(timeout=ANSWER_S)[0].splitlines()]

    assert (joined["event"], joined["ranks"]) == ("joined", [0, 1])
    assert "sent SIGKILL to rank 1" in sent
    assert [one["finding"]["kind"] for one in events if one["event"] == "appeared"] == [
        "rank-killed"
    ]
    assert events[-1]["event"] == "ended"


@pytest.mark.torch
def test_the_ddtop_before_it_looks_at_a_job_of_this_one(world, tmp_path, before):
    viewer = Viewer(world, tmp_path, before, ROOT)
    viewer.until_both_move()

    # Without a terminal that one reads the records too, and prints a table of them.
    assert "2/2 ranks" in viewer.says("attach")
    assert "ok: 2/2 moving" in viewer.says("diagnose")


@pytest.mark.torch
def test_a_ddtop_of_another_schema_says_so_and_what_to_do(world, tmp_path, tmp_path_factory):
    other = unpacked(OTHER_SCHEMA, tmp_path_factory.mktemp("other"))
    viewer = Viewer(world, tmp_path, other, ROOT)

    def refused():
        process = viewer._start("status")
        out, err = process.communicate(timeout=ANSWER_S)
        # Before its first rank there is no job yet.
        return err if process.returncode == 3 and "schema" in out + err else None

    said = world.until(refused, ANSWER_S, "a word about the schema")
    assert "the other side speaks schema" in said
    assert "install the same version on both" in said
