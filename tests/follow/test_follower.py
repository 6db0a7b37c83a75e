"""From frames to looks: what a viewer shows of a relay that answers, is silent, or has gone."""

from __future__ import annotations

import time

import pytest

from ddtop import journal, registry
from ddtop.follow import engine as feed
from ddtop.follow import live
from ddtop.follow.looks import look_once
from ddtop.wire import frames
from ddtop.wire.records import HostClock, HostState, HubLink, Reply
from tests import entries
from tests.jobs import FakeJob, unix_ns


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DDTOP_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("DDTOP_RUNTIME", str(tmp_path / "run"))


def entry(**changes):
    told = {"host": "h", "sender": "elsewhere", "relay_pid": 1, "port": 9, "socket": ""}
    told |= {"world_size": 2, "reporting": 0, "started_unix_ns": 0, "heartbeat_unix_ns": 0}
    return entries.entry(**(told | changes))


def as_frames(job):
    """The records of a job as a relay would have kept them."""
    return [
        frames.seal(
            record,
            sender=envelope.sender,
            unix_ns=envelope.unix_ns,
            mono_ns=0,
            attempt=envelope.attempt,
            rank=envelope.rank,
            pid=envelope.pid,
        )
        for envelope, record in job.in_order()
    ]


@pytest.mark.parametrize("left", ["a last state", "the journal only"])
def test_the_hang_before_a_kill_is_told_whatever_the_relay_left(home, left):
    job = FakeJob(3).trains(10)
    job.ranks[1].stands_at("fetch_labels", "data.py", 40)
    job.others_wait(1)
    job.passes(12)
    before = len(job.frames)
    job.ranks[1].ends(signal=9)
    for number in (0, 2):
        job.ranks[number].ends(signal=15, later_s=0.4)
    job.passes(3)
    gone = entry()
    journal.write(registry.journal_path(gone.job, gone.run, gone.sender), as_frames(job))
    if left == "a last state":
        after = job.frames[:3] + job.frames[before:]
        path = registry.state_dir() / "train.last"
        journal.write(path, after)
        gone = entry(last_state=str(path), ended_unix_ns=unix_ns(job.now))

    _, verdict = look_once(gone, 0.0)

    hang, kill = verdict.findings
    assert hang.summary.startswith(
        "until rank 1 ended: rank 1 has been in fetch_labels (data.py:40)"
    )
    assert (kill.kind, kill.ranks) == ("rank-killed", (1,))


def test_a_relay_that_is_gone_and_left_nothing_is_said_so_with_the_next_step(home):
    with pytest.raises(feed.UnreachableError, match="its agents start another within 10 s"):
        look_once(entry(), 0.0)


def test_what_is_no_frame_is_counted_and_another_version_is_reported():
    follower = feed.Follower("train")
    follower.take(b"GET / HTTP/1.1")
    follower.take(bytes([0x9B, frames.SCHEMA_MAJOR + 1, *10 * [0]]))

    assert follower.garbled == 1
    assert f"schema {frames.SCHEMA_MAJOR + 1}" in follower.refusal


def test_the_clock_of_a_host_that_is_an_hour_ahead_is_used_for_its_ages():
    """Two clocks that differ by an hour would make every rank silent for an hour."""
    job = FakeJob(2).trains(5)
    follower = feed.Follower("train", clock=lambda: unix_ns(job.now) - 3600 * 10**9)
    follower.take(frames.seal(Reply("live"), sender="r", unix_ns=0, mono_ns=0))
    for data in as_frames(job):
        follower.take(data)

    snapshot, verdict = follower.look()

    assert snapshot.reporting == 2
    assert verdict.headline.startswith("ok: 2/2 moving")


def test_a_look_before_the_first_record_knows_nothing_and_says_nothing():
    source = live.LiveSource(entry(heartbeat_unix_ns=time.time_ns()))

    look = source.look()

    assert (look.snapshot, look.contact, look.verdict.findings) == (None, None, ())


# -- the clock


def host_frame(name, at_s, role=None, clock=None):
    hub = HubLink(role) if role is not None else None
    return frames.seal(
        HostState(name, 4, hub=hub, clock=clock), sender=name, unix_ns=unix_ns(at_s), mono_ns=0
    )


def live_follower():
    follower = feed.Follower("train", clock=lambda: unix_ns(1000))
    follower.take(frames.seal(Reply("live"), sender="h", unix_ns=unix_ns(0), mono_ns=0))
    return follower


def test_now_is_the_relays_now_where_its_clock_is_another():
    follower = live_follower()
    follower.take(host_frame("a", 1060))

    assert follower.now_unix_ns() == unix_ns(1060)


def test_of_several_hosts_now_is_the_hubs_whoever_reports():
    """Each report of another host moved the viewer's clock, so its looks were of the past and of
    the future in turn.
    """
    follower = live_follower()
    follower.take(host_frame("b", 1300, "leaf", HostClock(-240_000_000_000, 1000)))
    assert follower.now_unix_ns() == unix_ns(1060)

    follower.take(host_frame("a", 1060, "hub"))
    follower.take(host_frame("c", 700, "leaf"))
    follower.take(host_frame("b", 1301, "leaf", HostClock(-240_000_000_000, 1000)))

    assert follower.now_unix_ns() == unix_ns(1060)


def test_before_the_hub_is_known_now_is_that_of_the_first_host():
    follower = live_follower()
    follower.take(host_frame("b", 1030, "leaf"))
    follower.take(host_frame("c", 1500, "leaf"))

    assert follower.now_unix_ns() == unix_ns(1030)


def test_clocks_that_hardly_differ_are_one():
    follower = live_follower()
    follower.take(host_frame("a", 1001.5, "hub"))

    assert follower.now_unix_ns() == unix_ns(1000)
