"""Follows a job as the dashboard does, without drawing: `python -m tools.benchmarks.viewer JOB
SECONDS`.

Prints "live" once it has caught up; looks (snapshot and verdict) twice a second.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from ddtop import registry
from ddtop.diagnosis.finding import Verdict
from ddtop.feeds.route import request
from ddtop.follow.engine import HISTORY_S, LOOK_S, Follower
from ddtop.model.facts import Snapshot
from ddtop.wire.records import Command
from tests.viewers import ViewerLink


def follow(entry: registry.JobEntry, seconds: float) -> Iterator[tuple[Snapshot, Verdict]]:
    """Take a snapshot and a verdict twice a second, as soon as the relay's history is in."""
    follower = Follower(entry.job)
    link = ViewerLink(entry.address, entry.port, registry.secret())
    try:
        link.send(request(Command("join", history_s=HISTORY_S)))
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for data in link.receive(LOOK_S):
                follower.take(data)
            link.send(request(Command("ping")))
            if follower.live:
                yield follower.look()
    finally:
        link.close()


def main() -> None:
    """Follow until the time is over."""
    entry = registry.find_job(sys.argv[1], time.time_ns())
    for number, _ in enumerate(follow(entry, float(sys.argv[2]))):
        if number == 0:
            print("live", flush=True)


if __name__ == "__main__":
    main()
