"""`ddtop replay`, and the other commands on a journal whose relay is gone."""

from __future__ import annotations

import json
import os
import time

import pytest

from ddtop import journal, registry
from tests.cli.commands import ddtop, finished, killed
from tests.entries import left
from tests.jobs import trained, unix_ns

MINUTE_NS = 60_000_000_000
WENT_FIRST = "rank 1 went first: SIGKILL"


def write_journal(job, name="train-47", ended=True, heard_ago_ns=10 * MINUTE_NS, sender="0" * 12):
    """A job whose relay is gone. `ended` False: it was killed and left only the journal."""
    told = {"sender": sender, "world_size": job.world_size}
    if not ended:
        told |= {"ended_unix_ns": None, "ended_reason": None}
    entry = left(name, heard_ago_ns / 1e9, **told)
    registry.write_entry(entry)
    path = registry.journal_path(name, "r1", sender)
    journal.write(path, job.frames)
    return path


def hangs():
    job = trained(2)
    job.ranks[1].stands_at("fetch_labels", "data.py", 40)
    job.others_wait(1)
    return job.passes(20)


# -- replay


def test_replay_without_a_terminal_prints_the_last_moment(home, tmp_path):
    path = write_journal(killed())

    for what in ("train-47", "train", str(path)):
        done = ddtop("replay", what)
        assert done.returncode == 0
        assert "no terminal, so here is the last moment" in done.stderr
        assert WENT_FIRST in done.stdout
        assert "ENDED" in done.stdout
        assert "RANK" in done.stdout
        assert "note:" not in done.stdout


def test_replay_of_a_file_needs_no_job_and_no_state_folder(home, tmp_path):
    """A colleague sent the file by e-mail."""
    path = write_journal(killed())
    sent = tmp_path / "from-ada.journal"
    sent.write_bytes(path.read_bytes())
    for one in home.state.iterdir():
        one.unlink()

    done = ddtop("replay", str(sent), exits=0)

    assert done.stdout.startswith("train-47")


def test_replay_of_a_last_state_works_too(home):
    path = write_journal(killed())
    path.rename(path.with_suffix(".last"))

    assert WENT_FIRST in ddtop("replay", str(path.with_suffix(".last"))).stdout
    assert WENT_FIRST in ddtop("replay", "train").stdout


def test_damage_is_named(home):
    path = write_journal(killed())
    os.truncate(path, path.stat().st_size * 2 // 3)

    done = ddtop("replay", "train", exits=0)

    assert "note: the journal is damaged: what comes before the damage is shown" in done.stdout
    assert "cut off" in done.stdout


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b"PK a zip", "is not a ddtop journal"),
        (b"ddtop journal 2\n1234", "is 'ddtop journal 2', this ddtop reads 1"),
        (journal.HEAD, "there is nothing to show in"),
        (journal.HEAD + b"\x00" * 100, "damaged frame length at byte 16"),
    ],
)
def test_a_file_that_is_no_journal_is_refused_with_the_reason(home, tmp_path, content, why):
    (tmp_path / "x.journal").write_bytes(content)

    done = ddtop("replay", str(tmp_path / "x.journal"))

    assert (done.returncode, done.stdout) == (3, "")
    assert why in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "what", ["nosuch.journal", "./nosuch", "/nosuch/folder/x", "", "/", ".", "pipe", "x" * 300]
)
def test_an_unreadable_file_gives_no_traceback_and_does_not_block(
    home, tmp_path, monkeypatch, what
):
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)

    done = ddtop("replay", what)

    assert (done.returncode, done.stdout) == (3, "")
    assert "Traceback" not in done.stderr


def test_an_unknown_job_lists_those_there_are_and_none_is_a_usage_error(home):
    write_journal(killed(), "llama-7b")

    assert ddtop("replay", "bert").returncode == 3
    assert "llama-7b" in ddtop("replay", "bert").stderr
    assert ddtop("replay").returncode == 2


def test_a_missing_journal_is_reported_with_possible_reasons(home):
    write_journal(killed()).unlink()

    done = ddtop("replay", "train", exits=3)

    assert "has no journal" in done.stderr
    assert "DDTOP_JOURNAL_MIB=0 switches it off" in done.stderr


# -- the other commands


def test_a_job_whose_relay_was_killed_is_read_from_its_journal(home):
    """The scheduler killed the relay with the step, so it wrote no last state."""
    write_journal(hangs(), ended=False)

    done = ddtop("diagnose", "train", "--json")
    found = json.loads(done.stdout)

    assert (done.returncode, found["live"], found["ended"]) == (1, False, None)
    assert found["findings"][0]["ranks"] == [1]
    assert found["time_unix_ns"] == unix_ns(30)
    assert "stops before the end of the job: its relay was killed" in " ".join(
        ddtop("diagnose", "train").stdout.split()
    )
    assert "ENDED" in ddtop("status", "train").stdout


def test_a_relay_that_ended_just_now_may_come_back(home):
    write_journal(hangs(), ended=False, heard_ago_ns=50_000_000_000)

    found = ddtop("diagnose", "train")

    assert json.loads(ddtop("diagnose", "train", "--json").stdout)["live"] is True
    assert "a job that runs starts another" in " ".join(found.stdout.split())


def test_the_last_state_of_an_ended_job_is_preferred_to_its_journal(home):
    path = write_journal(killed())
    journal.write(registry.last_state_path("train-47", "r1", "0" * 12), finished().frames)
    assert json.loads(ddtop("diagnose", "train", "--json").stdout)["health"] == "ok"

    registry.last_state_path("train-47", "r1", "0" * 12).write_bytes(b"damaged")
    assert path.exists()
    assert json.loads(ddtop("diagnose", "train", "--json").stdout)["health"] == "critical"


def test_the_last_state_of_an_earlier_attempt_is_not_preferred_to_the_journal(home):
    """All ranks ended, the launcher restarted them, then the node was lost."""
    write_journal(hangs(), ended=False)
    journal.write(registry.last_state_path("train-47", "r1", "0" * 12), finished().frames)

    assert json.loads(ddtop("diagnose", "train", "--json").stdout)["health"] == "critical"


def test_a_job_from_before_the_reboot_is_read_and_pruned(home):
    path = write_journal(killed(), sender="beforeboot01")

    assert WENT_FIRST in ddtop("status", "train").stdout
    registry.prune_ended(time.time_ns() + 15 * 86400 * 10**9)
    assert not path.exists()
