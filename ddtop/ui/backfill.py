"""What happened before this viewer connected: found once in the records that the source has kept,
on a separate thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from ddtop.diagnosis.finding import Verdict
from ddtop.model.state.facts import Snapshot
from ddtop.present.findings.timeline import Timeline
from ddtop.ui.session import Session
from ddtop.viewer.background import in_thread
from ddtop.viewer.job_history import JobHistory
from ddtop.viewer.thresholds import chosen

LOOKS_MAX = 240
STEP_MIN_NS = 1_000_000_000
TAKES_S = 10.0
"""The most time that this may take. With hundreds of ranks one look costs a tenth of a second."""
REST_PART = 1.0
"""After each look the thread sleeps for this share of the look's time: the screen needs the GIL
too."""

Recall = Callable[[int], Iterator[tuple[Snapshot, Verdict]]]


async def recall(session: Session) -> bool:
    """Add the past to the session's timeline and to the job's numbers. Returns False where nothing
    is kept or this was done before."""
    look = session.newest
    if session.recalled or look.recall is None or look.span is None:
        return False
    session.recalled = True
    step_ns = max((look.span[1] - look.span[0]) // LOOKS_MAX, STEP_MIN_NS)
    until = session.timeline.began_unix_ns
    timeline, history = await in_thread(_looked, look.recall, step_ns, until)
    session.timeline.absorb(timeline)
    session.job_history.absorb(history)
    return True


def _looked(looks: Recall, step_ns: int, until_unix_ns: int | None) -> tuple[Timeline, JobHistory]:
    timeline, history, began = Timeline(), JobHistory(chosen()), time.monotonic()
    at = began
    for snapshot, verdict in looks(step_ns):
        if until_unix_ns is not None and snapshot.time_unix_ns >= until_unix_ns:
            break
        timeline.take(snapshot, verdict)
        history.record(snapshot)
        now = time.monotonic()
        if now - began > TAKES_S:
            break
        time.sleep(min((now - at) * REST_PART, 0.1))
        at = time.monotonic()
    return timeline, history
