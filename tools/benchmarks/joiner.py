"""Joins a job's relay and counts what comes: `python -m tools.benchmarks.joiner JOB SECONDS`.

Prints one JSON line when the relay has told all of the past (seconds, frames, bytes, and seconds
until a model has taken it in and judged it), and one when the time is over.
"""

from __future__ import annotations

import json
import sys
import time

from ddtop import registry
from ddtop.feeds.route import request
from ddtop.follow.engine import HISTORY_S, Follower
from ddtop.link.viewer_side import PING_S
from ddtop.wire import frames
from ddtop.wire.records import Command, HostState, Reply
from tests.viewers import ViewerLink

SLICE_S = 0.25


def main() -> None:
    """Join, follow without a model, leave."""
    entry = registry.find_job(sys.argv[1], time.time_ns())
    link = ViewerLink(*entry.endpoint(), registry.secret())
    try:
        began = time.monotonic()
        link.send(request(Command("join", history_s=HISTORY_S)))
        past = _past(link)
        joined_s = time.monotonic() - began
        follower = Follower(entry.job)
        taken = time.monotonic()
        for data in past:
            follower.take(data)
        snapshot, _ = follower.look()
        told = {
            "joined_s": joined_s,
            "frames": len(past),
            "mib": sum(map(len, past)) / 2**20,
            "look_s": time.monotonic() - taken,
            "ranks": len(snapshot.ranks),
        }
        del past, follower, snapshot
        print(json.dumps(told), flush=True)
        print(json.dumps(_follow(link, float(sys.argv[2]))), flush=True)
    finally:
        link.close()


def _past(link: ViewerLink) -> list[bytes]:
    found = []
    for data in link.receive(60.0):
        found.append(data)
        if len(data) < 200 and _is_live(data):
            return found
    raise SystemExit("the relay did not tell its past within a minute")


def _is_live(data: bytes) -> bool:
    envelope = frames.open_envelope(data)
    record = frames.open_record(envelope) if envelope.kind == "Reply" else None
    return isinstance(record, Reply) and record.name == "live"


def _follow(link: ViewerLink, seconds: float) -> dict[str, float]:
    count = states = size = dropped = leaves = 0
    began = pinged = time.monotonic()
    while (now := time.monotonic()) < began + seconds:
        if now - pinged > PING_S:
            pinged = now
            link.send(request(Command("ping")))
        for data in link.receive(SLICE_S):
            count, size = count + 1, size + len(data)
            envelope = frames.open_envelope(data)
            states += envelope.kind == "RankState"
            record = frames.open_record(envelope) if envelope.kind == "HostState" else None
            if isinstance(record, HostState) and record.hub is not None and record.hub.leaves:
                dropped, leaves = record.dropped, record.hub.leaves
    spent = time.monotonic() - began
    return {
        "frames_per_s": count / spent,
        "states_per_s": states / spent,
        "mib_per_s": size / 2**20 / spent,
        "dropped": dropped,
        "leaves": leaves,
    }


if __name__ == "__main__":
    main()
