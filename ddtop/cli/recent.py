"""What has happened to a job in the last minutes, from its journal."""

from __future__ import annotations

import time
from collections.abc import Iterator

from ddtop import registry
from ddtop.diagnosis.finding import Verdict
from ddtop.folders import call_patiently, state_dir_text
from ddtop.follow.engine import LEFT_S
from ddtop.follow.recording import Recording, read_recording
from ddtop.journal import JournalError
from ddtop.model.facts import Snapshot
from ddtop.present.events import ListedEvent, events
from ddtop.words.units import SECOND_NS

BACK_S = 900.0
"""The timeline covers the last minutes; exits are listed for the whole run."""
LOOKS_MAX, LOOKS_S = 180, 6.0
"""How many past moments are examined, and how long that may take.

With thousands of ranks each look takes a second.
"""


def recording_of(entry: registry.JobEntry) -> tuple[Recording | None, str | None]:
    """The journal of the run, or the reason why there is none."""
    path = registry.journal_path(entry.job, entry.run, entry.sender)
    try:
        growing = entry.reachable(time.time_ns())
        found = call_patiently(
            lambda: read_recording(path, entry.job, growing=growing), state_dir_text, LEFT_S
        )
    except (JournalError, OSError, registry.RegistryError) as error:
        return None, f"no journal, so the last minutes are not known: {error}"
    return found, None


def recent_events(
    snapshot: Snapshot, verdict: Verdict, recording: Recording | None, back_s: float = BACK_S
) -> tuple[tuple[ListedEvent, ...], str | None]:
    """The events of the last minutes, with a note if not all of them could be looked at."""
    looks = [(snapshot, verdict)]
    if recording is None or recording.tape.span is None:
        return events(looks), None
    first, last = recording.tape.span
    began = time.monotonic()
    past: list[tuple[Snapshot, Verdict]] = []
    note = recording.damage
    for at in _moments(first, last, back_s):
        if time.monotonic() - began > LOOKS_S:
            note = (
                f"looked back only to {(last - at) / SECOND_NS:.0f} s before the end: "
                "with so many ranks, a look takes long"
            )
            break
        past.append(recording.tape.at(at))
    past = [look for look in reversed(past) if look[0].time_unix_ns < snapshot.time_unix_ns]
    return events([*past, *looks]), note


def _moments(first: int, last: int, back_s: float) -> Iterator[int]:
    """Moments (ns) from the last one back, as densely as `LOOKS_MAX` allows."""
    begin = max(first, last - int(back_s * SECOND_NS))
    step = max((last - begin) // LOOKS_MAX, SECOND_NS)
    yield from range(last, begin - 1, -step)
