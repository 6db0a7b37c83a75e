"""The attempts of a job: its ended runs of one name, as their relays left them, and what they say
of the next one: stop or restart."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddtop import registry
from ddtop.diagnosis.finding import CRITICAL, Finding, Verdict
from ddtop.diagnosis.kinds import Kind
from ddtop.follow.engine import UnreachableError, last_state
from ddtop.model.facts import Snapshot
from ddtop.present.schemas import ATTEMPTS_SCHEMA
from ddtop.present.text import clean
from ddtop.words.units import clock, duration

ATTEMPTS_MAX = 20
"""A last state is read in some milliseconds, that of ten thousand ranks in a second."""
SAME = 2
"""An exception that came twice in a row at one line does not go away by itself."""
WITHOUT: Mapping[Kind, str] = {
    Kind.HOST_LOST: "it was lost",
    Kind.GPU_ERROR: "a GPU of it reported an error",
    Kind.PEER_UNREACHABLE: "the others could not reach it",
}
"""The ends for which a host is to blame, not the program."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run. `finding`: what ended it; None if it ended well, or that is not known."""

    entry: registry.JobEntry
    snapshot: Snapshot | None
    finding: Finding | None

    @property
    def raised(self) -> str | None:
        """The exception that ended it, with its line."""
        if self.finding is None or self.snapshot is None or self.finding.kind != Kind.RANK_CRASHED:
            return None
        error = self.snapshot.rank(self.finding.ranks[0]).reported.exception
        if error is None or error.place is None:
            return None
        return f"{error.type} at {error.place.file}:{error.place.line}"

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that are to blame."""
        if self.finding is None or self.snapshot is None or self.finding.kind not in WITHOUT:
            return ()
        hosts = {self.snapshot.rank(rank).host for rank in self.finding.ranks}
        return tuple(sorted(host for host in hosts if host is not None))


@dataclass(frozen=True, slots=True)
class Next:
    """What to do after the last attempt. `without`: these hosts."""

    do: str
    reason: str
    without: tuple[str, ...] = ()

    def text(self) -> str:
        """One line."""
        without = f" without {', '.join(self.without)}" if self.without else ""
        return f"{self.do}{without}: {self.reason}"

    def as_json(self) -> dict[str, object]:
        """As an object."""
        return {"do": self.do, "reason": self.reason, "without": list(self.without)}


def attempt_of(entry: registry.JobEntry, snapshot: Snapshot | None, verdict: Verdict) -> Attempt:
    """The attempt, with the finding about its end: one that blames a host comes first."""
    found = [one for one in verdict.findings if one.severity == CRITICAL]
    blames = next((one for one in found if one.kind in WITHOUT), None)
    return Attempt(entry, snapshot, blames or next(iter(found), None))


def attempts_of(name: str, before_unix_ns: int | None = None) -> list[Attempt]:
    """The runs of this name that are over, the newest first. `before_unix_ns`: those that had
    started before.

    Raises:
        RegistryError: the state folder cannot be used.
    """
    now = time.time_ns()
    until = now if before_unix_ns is None else before_unix_ns
    entries = [
        entry
        for entry in registry.without_parts(registry.read_entries(), now)
        if entry.job == name and not entry.live(now) and entry.started_unix_ns < until
    ]
    entries.sort(key=lambda entry: -entry.started_unix_ns)
    return [_left(entry) for entry in entries[:ATTEMPTS_MAX]]


def _left(entry: registry.JobEntry) -> Attempt:
    with contextlib.suppress(UnreachableError):
        return attempt_of(entry, *last_state(entry, from_journal=False))
    return Attempt(entry, None, None)


def after(entry: registry.JobEntry, snapshot: Snapshot, verdict: Verdict) -> Next | None:
    """What to do after this run; None while it lives, if it ended well, or if nothing is known."""
    last = attempt_of(entry, snapshot, verdict)
    if snapshot.live or last.finding is None:
        return None
    try:
        return following([last, *attempts_of(entry.job, entry.started_unix_ns)])
    except registry.RegistryError:
        return None


def following(attempts: Sequence[Attempt]) -> Next | None:
    """The same from the attempts, the newest first."""
    last = attempts[0]
    if last.finding is not None and last.hosts:
        blamed = sum(bool(set(last.hosts) & set(one.hosts)) for one in attempts)
        often = f", and at fault in {blamed} of the last {len(attempts)} attempts"
        reason = WITHOUT[last.finding.kind] + (often if blamed > 1 else "")
        return Next("restart", reason, last.hosts)
    raised = last.raised
    same = next((at for at, one in enumerate(attempts) if one.raised != raised), len(attempts))
    if raised is None or same < SAME:
        return None
    return Next("stop", f"the last {same} attempts of {last.entry.job} ended with {raised}")


def lines(attempts: Sequence[Attempt]) -> list[str]:
    """One line for each: when, how long, how far, what ended it."""
    told = []
    for one in attempts:
        entry, end = one.entry, one.entry.ended_unix_ns or one.entry.heartbeat_unix_ns
        day = time.strftime("%Y-%m-%d", time.localtime(entry.started_unix_ns / 1e9))
        step = _step(one)
        told.append(
            f"{day} {clock(entry.started_unix_ns)}"
            f"  {duration(max(end - entry.started_unix_ns, 0) / 1e9):>8}"
            f"  {'-' if step is None else f'step {step}':>10}  {clean(_why(one))}"
        )
    return told


def as_json(name: str, attempts: Sequence[Attempt]) -> dict[str, object]:
    """`ddtop.attempts/1`."""
    then = following(attempts)
    return {
        "schema": ATTEMPTS_SCHEMA,
        "job": name,
        "attempts": [
            {
                "run": one.entry.run,
                "started_unix_ns": one.entry.started_unix_ns,
                "ended_unix_ns": one.entry.ended_unix_ns,
                "step": _step(one),
                "ended": _why(one),
                "kind": one.finding.kind if one.finding is not None else None,
                "ranks": list(one.finding.ranks) if one.finding is not None else [],
                "hosts": list(one.hosts),
            }
            for one in attempts
        ],
        "next": then.as_json() if then is not None else None,
    }


def _step(one: Attempt) -> int | None:
    if one.snapshot is None:
        return None
    progress = one.snapshot.progress
    return progress.step if progress is not None else one.snapshot.iteration


def _why(one: Attempt) -> str:
    if one.finding is not None:
        return one.finding.summary
    if one.snapshot is not None and one.snapshot.ended is not None:
        return one.snapshot.ended.reason
    return one.entry.ended_reason or "how it ended is not known"
