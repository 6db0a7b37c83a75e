"""A follower that has joined a simulated job, and its result at each look."""

from __future__ import annotations

from ddtop.follow import engine as feed
from ddtop.sim.incidents import Scenario
from ddtop.sim.job import SECOND_NS, SimulatedJob
from ddtop.wire import frames
from ddtop.wire.records import Reply

BEGAN = 1_700_000_000 * SECOND_NS
RANKS, JOINED_S = 32, 20


class Viewer:
    """A follower that joined a simulated job, and its result at each look."""

    def __init__(self, job, newest_only):
        self.now = BEGAN + JOINED_S * SECOND_NS
        self.follower = feed.Follower(job.name, clock=lambda: self.now)
        self.follower.newest_only = newest_only
        self.follower.take(frames.seal(Reply("live"), sender="r", unix_ns=self.now, mono_ns=0))
        for data in job.joining(self.now):
            self.follower.take(data)
        self.job, self.said = job, []

    def hears(self, now, data):
        self.now = now
        for one in data:
            self.follower.take(one)

    def looks(self):
        snapshot, verdict = self.follower.look(self.now)
        found = tuple((one.kind, one.ranks) for one in verdict.findings)
        states = tuple(rank.state for rank in snapshot.ranks)
        iterations = tuple(rank.progress.iteration for rank in snapshot.ranks)
        self.said.append((verdict.health, found, states, iterations, snapshot.moving))


def simulated(*incidents, seed=0):
    return SimulatedJob(RANKS, seed, Scenario(incidents), began_unix_ns=BEGAN, reports_per_s=1)
