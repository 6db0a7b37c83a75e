"""Ranks of other jobs at the other end of a connection: real processes, pages and sockets."""

import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager

import pytest

from ddtop import registry
from ddtop.agent.state_page import StatePage
from ddtop.relay.processes import sample
from ddtop.relay.processes.far_ends import EVERY_S, WAITS_S, FarEnds
from ddtop.wire import frames
from ddtop.wire import page as layout
from ddtop.wire.records import Hello, Place, Whereabouts

SERVE = """
import socket, sys, time
server = socket.create_server(("127.0.0.1", 0)); print(server.getsockname()[1], flush=True)
peer = server.accept()[0] if {accepts} else None
{then}
"""
ASK = """
import socket, sys
peer = socket.create_connection(("127.0.0.1", int(sys.argv[1]))); print("up", flush=True)
peer.recv(1)
"""
PLACE = Place("generate", "/home/ada/rollout.py", 51, "collective", callee="all_reduce")
SECOND = 1_000_000_000


class Process:
    def __init__(self, program, job, world_size=1, argument=""):
        self.child = subprocess.Popen(
            [sys.executable, "-c", program, argument], stdout=subprocess.PIPE, text=True
        )
        self.says = self.child.stdout.readline().strip()
        pid = self.child.pid
        self.page = StatePage(pid, registry.start_ticks(pid))
        self.place = Whereabouts(job, 0, world_size, 1, PLACE)
        self.page.write(layout.WHEREABOUTS, frames.encode(self.place))
        hello = Hello(
            job, "r", 0, 0, 0, 1, "h", pid, registry.start_ticks(pid),
            page_path=str(self.page.path),
        )  # fmt: skip
        self.watched = sample.Watched(hello, None)

    def end(self):
        self.child.kill()
        self.child.communicate()
        self.page.remove()


@contextmanager
def two_jobs(then="time.sleep(60)", accepts=True, **other):
    with ExitStack() as stack:
        server = Process(SERVE.format(accepts=accepts, then=then), other.pop("job", "b"), **other)
        stack.callback(server.end)
        asker = Process(ASK, "a", argument=server.says)
        stack.callback(asker.end)
        yield asker, server


def ends_of(asker, looks=6, between_s=0.1):
    """What the relay of the asker says after some looks, each a second later on its clock."""
    found, now = FarEnds(), time.monotonic_ns()
    for number in range(looks):
        time.sleep(between_s)
        at = now + number * SECOND
        (state,) = found.look([asker.watched], [sample.look(asker.watched, at)], at)
    return state.far_ends


@pytest.mark.parametrize("accepts", [True, False])
def test_the_far_end_of_a_connection_is_a_rank_of_another_job_that_sleeps(accepts):
    """A server that hangs before accept() holds the connection in the kernel's queue."""
    with two_jobs(accepts=accepts) as (asker, server):
        (end,) = ends_of(asker)

    assert (end.where, end.pid) == (server.place, server.child.pid)
    assert end.address == f"127.0.0.1:{server.says}"
    assert end.still_since_unix_ns is not None


def test_one_that_computes_does_not_stand_still():
    with two_jobs(then="while True: pass") as (asker, _):
        (end,) = ends_of(asker)

    assert end.still_since_unix_ns is None


def test_one_that_wakes_again_and_again_does_not_stand_still_for_long():
    with two_jobs(then="while True: time.sleep(0.05)") as (asker, _):
        before = time.time_ns()
        ends = ends_of(asker)

    assert all((end.still_since_unix_ns or before) >= before for end in ends)
    assert [end.still_since_unix_ns for end in ends] == [None]


def test_a_job_with_ranks_on_other_hosts_is_not_known_to_stand_still():
    with two_jobs(world_size=2) as (asker, _):
        (end,) = ends_of(asker)

    assert end.still_since_unix_ns is None


def test_a_rank_of_the_same_job_is_no_far_end():
    """Two launchers of one job on one host have two relays."""
    with two_jobs(job="a") as (asker, _):
        assert ends_of(asker) == ()


def test_while_a_rank_makes_progress_nobody_looks_for_its_far_ends():
    with two_jobs() as (asker, _):
        now = time.monotonic_ns() + int((6 - WAITS_S) * SECOND)
        asker.page.write(layout.WHEREABOUTS, frames.encode(Whereabouts("a", 0, 1, now, None)))

        assert ends_of(asker) == ()


def test_far_ends_are_looked_for_once_in_a_few_seconds(monkeypatch):
    asked = []
    monkeypatch.setattr("ddtop.relay.processes.sockets.table", lambda pid: asked.append(pid) or ())
    with two_jobs() as (asker, _):
        ends_of(asker, looks=1 + 2 * int(EVERY_S), between_s=0.01)

    assert len(asked) == 2
