"""Jobs that have been watched for a while: the numbers of their last minutes."""

from __future__ import annotations

import math

from ddtop.follow.history import JobHistory, SeriesHistory
from ddtop.model.facts import Snapshot
from ddtop.policy import POLICY
from tests.ui.changed import replace

SECOND = 1_000_000_000


def history_of(snapshot: Snapshot, minutes: float = 14.0, slower: float = 0.12) -> JobHistory:
    """The history of a job that ran evenly, and has been slower by this ratio for four minutes.

    If it makes no progress now, it did until then.
    """
    history = JobHistory(POLICY)
    still = snapshot.still_since_unix_ns
    for number in range(int(minutes * 30), -1, -1):
        at = snapshot.time_unix_ns - number * 2 * SECOND
        if still is not None and at > still:
            history.record(replace(snapshot, time_unix_ns=at))
            continue
        wave = 0.02 * math.sin(number / 3)
        late = slower if number < 120 else 0.0
        step = 196.0 * (1 + wave + late)
        ranks = tuple(
            replace(
                rank,
                progress={"step_ms": step * (1 + rank.rank % 4 * 0.01)},
                comm={"wait_ratio": 0.30 + wave + late / 2},
                loader={"wait_ratio": 0.01 + late / 3},
            )
            for rank in snapshot.ranks
        )
        moved = replace(
            snapshot,
            time_unix_ns=at,
            ranks=ranks,
            iteration=12_482 - number * 10,
            iterations_per_s=1000 / step,
            still_since_unix_ns=None,
        )
        history.record(moved)
    return history


def series_of(snapshot: Snapshot, seconds: int = 70) -> SeriesHistory:
    """What each rank did in the last seconds: it trained, and then what it does now."""
    history = SeriesHistory()
    still = snapshot.still_since_unix_ns or snapshot.time_unix_ns
    counted = {rank.rank: [0.0] * 7 for rank in snapshot.ranks}
    for number in range(seconds, -1, -1):
        at = snapshot.time_unix_ns - number * SECOND
        ranks = []
        for rank in snapshot.ranks:
            trains = (0.1, 0.3, 0.3 + 0.1 * math.sin(number + rank.rank), 0.1, 0.1, 0.0, 0.0)
            shares = trains if at <= still else rank.reported.activity_ratios or trains
            counts = counted[rank.rank]
            counts[:] = [was + share * 100 for was, share in zip(counts, shares, strict=True)]
            ranks.append(
                replace(
                    rank,
                    reported={"activity_samples": tuple(map(int, counts))},
                    process={"cpu_ratio": 1.0, "rss_bytes": rank.process.rss_bytes},
                )
            )
        history.record(replace(snapshot, time_unix_ns=at, ranks=tuple(ranks)))
    return history
