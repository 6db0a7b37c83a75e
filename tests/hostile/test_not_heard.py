"""Relays that stop or end while their job lives: health is unknown, never "ok" or "ended"."""

import json
import signal
import time

import msgspec
import pytest

from ddtop import registry
from ddtop.follow import engine as feed
from ddtop.follow.live import LiveSource
from ddtop.follow.looks import joined, look_once
from ddtop.policy import POLICY
from ddtop.wire.records import RankState
from tests.cli.commands import ddtop
from tests.hostile.scene import DEADLINE_S, Scene


@pytest.fixture
def relay(home):
    """A relay of its own, whose rank has trained for a moment."""
    scene = Scene()
    for iteration in range(1, 4):
        scene.say(RankState("running", iteration=iteration))
    scene.host(lambda state: bool(state.processes))
    yield scene
    # A stopped one has to be ended too.
    scene._relay.kill()
    scene._end()


def commands(*wanted):
    """(exit code, stdout, stderr) of each of these."""
    found = [ddtop(*words) for words in wanted]
    return [(one.returncode, one.stdout, one.stderr) for one in found]


def written(relay):
    """By now the job file names the rank, and the journal has been written."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        entry = registry.read_entries()[0]
        if entry.ranks and registry.journal_path("train", "r1").exists():
            return entry
        time.sleep(0.05)
    raise AssertionError("no job file with its ranks")


@pytest.mark.parametrize("heard", ["just now", "an hour ago"])
def test_a_stopped_relay_makes_health_unknown_in_every_command(relay, heard, monkeypatch):
    """Its process exists, the kernel accepts connections for it, and no answer comes. Its job file
    grows old meanwhile.
    """
    monkeypatch.setattr(feed, "JOIN_S", 0.3)
    entry = written(relay)
    relay.process.send_signal(signal.SIGSTOP)
    if heard == "an hour ago":
        old = entry.heartbeat_unix_ns - 3600 * 10**9
        registry.write_entry(msgspec.structs.replace(entry, heartbeat_unix_ns=old))
    wanted = [
        ("status", "train"),
        ("diagnose",),
        ("diagnose", "--json"),
        ("status", "--json"),
        ("jobs", "--json"),
    ]
    wanted += [("stacks", "train"), ("watch", "train")]
    status, diagnose, told, rows, jobs, stacks, watch = commands(*wanted)

    assert [one[0] for one in (status, diagnose, told, rows, jobs, stacks, watch)] == [
        4,
        4,
        4,
        4,
        0,
        4,
        4,
    ]
    for text in (status[1], diagnose[1], stacks[2], watch[2]):
        assert "is stopped, so the state of the job is not known; 1 of its ranks live" in " ".join(
            text.split()
        )
        assert f"kill -CONT {entry.relay_pid}" in " ".join(text.split())
        assert "ENDED" not in text
        assert not any(line.startswith("ok") for line in text.split("\n"))
    found = json.loads(told[1])
    assert (found["health"], found["live"], found["ended"]) == ("unknown", True, None)
    assert found["contact"].endswith(f"kill -CONT {entry.relay_pid}")
    assert json.loads(rows[1])["health"] == "unknown"
    assert [(one["health"], one["live"]) for one in json.loads(jobs[1])["jobs"]] == [
        ("unknown", True)
    ]


def test_a_relay_that_was_killed_makes_health_unknown_while_a_rank_lives(relay):
    written(relay)
    relay.process.kill()
    relay.process.wait()
    ((code, out, _),) = commands(("diagnose", "train", "--json"))
    found = json.loads(out)

    assert (code, found["health"], found["live"]) == (4, "unknown", True)
    assert (
        "is gone; 1 of its ranks live on this host: their agents start another" in found["contact"]
    )


def test_a_relay_that_was_told_to_end_does_not_end_a_job_whose_rank_lives(relay):
    """It writes that the job has ended, as far as it knows."""
    written(relay)
    relay.process.terminate()
    relay.process.wait()
    entry = registry.read_entries()[0]
    now = time.time_ns()
    snapshot, verdict = look_once(entry, 0.0)

    assert entry.ended_unix_ns is not None
    assert (entry.live(now), entry.over(now)) == (True, False)
    assert (snapshot.live, snapshot.ended, verdict.health) == (True, None, "unknown")


def test_if_rank_and_relay_were_killed_at_once_the_job_is_over_and_was_not_ok(relay):
    """A scheduler ends a step like this. The journal's last moment was healthy, and how the job
    ended is not known.
    """
    written(relay)
    relay.process.kill()
    relay.process.wait()
    relay._child.kill()
    relay._child.wait()
    entry = registry.read_entries()[0]
    entry = msgspec.structs.replace(entry, heartbeat_unix_ns=entry.heartbeat_unix_ns - 3600 * 10**9)
    snapshot, verdict = look_once(entry, 0.0)

    assert entry.over(time.time_ns())
    assert (snapshot.live, verdict.health) == (False, "unknown")
    assert "its relay was killed" in verdict.unheard


async def test_a_relay_that_stops_while_a_view_watches_is_reported_at_the_end_of_the_look(relay):
    """Two seconds of silence prove nothing; what was true before them is not true now."""
    entry = written(relay)
    async with joined(LiveSource(entry)) as job:
        heard = (await job.watch(1.0))[1]
        relay.process.send_signal(signal.SIGSTOP)
        silent = (await job.watch(POLICY.relay_silent_s + 2.0))[1]

    assert (heard.unheard, silent.health) == (None, "unknown")
    assert "is stopped" in silent.unheard
    assert silent.unheard_s > POLICY.relay_silent_s
