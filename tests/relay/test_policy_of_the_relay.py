"""What a relay reads of its host's ranks, and when, follows the policy that is passed in."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from ddtop import registry
from ddtop.patience import LatestResult
from ddtop.policy import POLICY
from ddtop.relay.disks import DiskWatch, Use
from ddtop.relay.dumps import collect
from ddtop.relay.dumps.collect import Dumps
from ddtop.relay.processes import candidates, cgroup, sample, sockets
from ddtop.relay.processes.rendezvous import RendezvousWatch
from ddtop.wire.page import PageView
from ddtop.wire.records import Hello

SECOND = 1_000_000_000


def with_(**changes):
    return replace(POLICY, **changes)


def hello(pid, **more):
    return Hello("j", "r", 0, 0, 0, 1, "h", pid, registry.start_ticks(pid), **more)


def test_the_policy_says_how_long_the_answer_of_a_file_system_counts():
    def paths(policy):
        watch = DiskWatch(policy)
        watch._asked["/data"] = answered = LatestResult(lambda: None)
        answered._result = (100.0, (-1, 1000, 10, 1000, 10))
        found = watch.disks({"/data": Use("/data", "/data", "cwd")}, 110.0)
        return [disk.path for disk in found if disk.path == "/data"]

    assert paths(POLICY) == ["/data"]
    assert paths(with_(disk_fresh_s=5.0)) == []


def test_the_policy_says_how_long_a_folder_is_watched_to_which_somebody_has_written(tmp_path):
    def is_watched(policy):
        watch = DiskWatch(policy)
        ranks = [hello(os.getpid(), environment={"TMPDIR": "/dev/shm"})]
        with (tmp_path / "model.pt").open("wb"):
            watch.ask(ranks, 1000.0)
        return str(tmp_path) in {one.path for one in watch.ask(ranks, 1600.0).values()}

    assert is_watched(POLICY)
    assert not is_watched(with_(disk_written_s=300.0))


def test_the_policy_says_how_old_the_count_of_kills_is_that_a_look_keeps():
    def marked_at(policy):
        rank = sample.watch(hello(os.getpid()), SECOND)
        sample.look(rank, 41 * SECOND, policy)
        sample.forget(rank)
        return rank.oom_marked[0] // SECOND

    assert marked_at(POLICY) == 41
    assert marked_at(with_(oom_mark_s=60.0)) == 1


def test_the_policy_says_how_far_back_the_kernels_log_is_read(monkeypatch):
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
        ours = sample.last_words(rank, 0, SECOND, POLICY)
        theirs = sample.last_words(rank, 0, SECOND, with_(oom_recent_s=30.0))
        sample.forget(rank)
    finally:
        process.kill()
        process.communicate()

    assert (ours.oom, theirs.oom) == (True, False)


def test_the_policy_says_how_long_a_rank_is_in_init_before_its_way_is_looked_at(monkeypatch):
    monkeypatch.setattr(sockets, "table", lambda pid: ())
    monkeypatch.setattr(candidates, "candidates", lambda inside, watched: ())
    now, pid = time.monotonic_ns(), os.getpid()
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    rank = sample.Watched(hello(pid, environment=place), -1)
    rank.page = PageView(pid, 1, 0, 0, 0, 0, None, init_since_mono_ns=now - 3 * SECOND)

    def ranks_looked_at(policy):
        watch = RendezvousWatch(policy)
        watch._probe = SimpleNamespace(result=lambda *_: (None, ()), ask=lambda *_: None)
        found = watch.look([rank], 1, now)
        watch.close()
        return [way.rank for way in found.ways]

    assert ranks_looked_at(POLICY) == [0]
    assert ranks_looked_at(with_(init_inside_s=5.0)) == []


@pytest.mark.parametrize(
    ("idle_s", "after_s", "read"),
    [(POLICY.worker_idle_s, 1.0, True), (5.0, 1.0, False), (5.0, 6.0, True)],
)
def test_the_policy_says_how_long_workers_are_idle_before_they_are_read(
    monkeypatch, idle_s, after_s, read
):
    """A worker has used no CPU since the dump began. The next worker has been idle for as long by
    then, and is read at once.
    """
    monkeypatch.setattr(collect, "_effort", lambda pid: (1, 1))
    own = os.getpid()
    worker = collect._Child(own, registry.start_ticks(own), (1, 1))
    target = collect._Target(SimpleNamespace(), [], True, False)
    target.children.append(worker)
    dumps = Dumps(lambda *_: None, lambda *_: True, with_(worker_idle_s=idle_s))

    assert dumps._next_child(target, after_s)
    assert (target.child is worker) == read
    assert not read or time.monotonic() - target.since >= idle_s
