"""Limits of the relay of which no other test notices another value: each test changes one, and sees
the relay behave differently."""

import os
import select
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from ddtop import registry
from ddtop.policy import POLICY
from ddtop.relay import history, triggers
from ddtop.relay.gpus import ras
from ddtop.relay.history import JournalWriter
from ddtop.relay.processes import candidates, cgroup, family, rendezvous, sample, sockets
from ddtop.relay.triggers import ArrivalsTrigger
from ddtop.wire.page import PageView
from ddtop.wire.records import Hello

SECOND = 1_000_000_000
LONG_S = 3600.0


def hello(pid, **more):
    return Hello("j", "r", 0, 0, 0, 1, "h", pid, registry.start_ticks(pid), **more)


def times_asked(*spans):
    """How often a relay asks for arrivals, each second of `spans`: (seconds, how much each of the
    ranks waits)."""
    trigger, found, now = ArrivalsTrigger(), 0, 0.0
    for seconds, ratios in spans:
        for _ in range(seconds):
            for pid, ratio in enumerate(ratios):
                trigger.note_wait(pid, ratio, now)
            found += trigger.due(now)
            now += 1.0
    return found


ANOTHER = ((60, (0.4, 0.0, 0.4)), (60, (0.4, 0.4, 0.0)))
CALM = ((60, (0.4, 0.0)), (90, (0.0, 0.0)), (5, (0.4, 0.0)))


@pytest.mark.parametrize(
    ("limit", "value", "spans", "asked"),
    [
        ("ARRIVALS_FAR_RATIO", 0.5, ANOTHER, (11, 7)),
        ("ARRIVALS_CALM_S", LONG_S, CALM, (8, 7)),
    ],
)
def test_limits_say_how_often_a_relay_asks_for_arrivals(monkeypatch, limit, value, spans, asked):
    before = times_asked(*spans)
    monkeypatch.setattr(triggers, limit, value)

    assert (before, times_asked(*spans)) == asked


def is_stuck():
    """Whether NCCL's status service is asked five seconds after the last agent named a stuck call,
    which it did for five seconds."""
    asked = ras.Ras(POLICY)
    for second in range(10):
        if second < 5:
            asked.note_stuck(float(second))
        asked.look(float(second), ())
    return asked.is_stuck(10.0)


def test_a_limit_says_how_long_a_stuck_call_counts_after_its_last_report(monkeypatch):
    assert not is_stuck()
    monkeypatch.setattr(ras, "RAS_STUCK_FRESH_S", LONG_S)
    assert is_stuck()


def test_a_limit_says_when_a_disk_is_slow(tmp_path, monkeypatch):
    writer = JournalWriter(tmp_path / "journal", 0, tuple)
    writer._flushing_since = time.monotonic() - 60

    assert "has not taken anything" in writer.problem
    monkeypatch.setattr(history, "RECORDING_SLOW_S", LONG_S)
    assert writer.problem is None


@pytest.mark.parametrize("enough", [family.PARENT_WAITS_LOOKS, 7])
def test_a_limit_says_how_long_a_parent_waits_for_the_relay(monkeypatch, enough):
    monkeypatch.setattr(family, "PARENT_WAITS_LOOKS", enough)
    monkeypatch.setattr(family, "_waits", lambda _: True)
    monkeypatch.setattr(family, "_is_relay", lambda _: True)
    monkeypatch.setattr(family, "children", lambda _: (os.getpid(),))
    parent = family.WaitingParent()

    assert next(number for number in range(1, 20) if parent.look()) == enough


def test_a_limit_says_how_far_back_the_kernels_log_is_read(monkeypatch):
    """The log shows that the OOM killer ended this very process, a minute ago."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        rank = sample.watch(hello(process.pid), 0)
        process.send_signal(signal.SIGKILL)
        assert select.select([rank.pidfd], [], [], 10)[0]
        line = f"6,1,1000000,-;Out of memory: Killed process {process.pid} (python)".encode()
        monkeypatch.setattr(
            cgroup, "read_log", lambda recent_s: cgroup.kills_in([line], 61 * SECOND, recent_s)
        )
        ours = sample.last_words(rank, 0, SECOND)
        monkeypatch.setattr(sample, "OOM_RECENT_S", 30.0)
        theirs = sample.last_words(rank, 0, SECOND)
        sample.forget(rank)
    finally:
        process.kill()
        process.communicate()

    assert (ours.oom, theirs.oom) == (True, False)


def test_a_limit_says_how_long_a_rank_is_in_init_before_its_way_is_looked_at(monkeypatch):
    monkeypatch.setattr(sockets, "table", lambda pid: ())
    monkeypatch.setattr(candidates, "candidates", lambda inside, watched: ())
    now, pid = time.monotonic_ns(), os.getpid()
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    rank = sample.Watched(hello(pid, environment=place), -1)
    rank.page = PageView(0, None, 0, None, init_since_mono_ns=now - 3 * SECOND)

    def ranks_looked_at():
        watch = rendezvous.RendezvousWatch()
        watch._probe = SimpleNamespace(result=lambda *_: (None, ()), ask=lambda *_: None)
        found = watch.look([rank], 1, now)
        watch.close()
        return [way.rank for way in found.ways]

    assert ranks_looked_at() == [0]
    monkeypatch.setattr(rendezvous, "INIT_INSIDE_S", 5.0)
    assert ranks_looked_at() == []
