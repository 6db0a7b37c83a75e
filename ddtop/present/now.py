"""The NOW column: what a rank does, in as few words as possible, and for how long."""

from __future__ import annotations

from typing import NamedTuple

from ddtop.model.state.facts import RankFacts, State
from ddtop.present.text import clean
from ddtop.wire.records import Exit, OpenCall, Place
from ddtop.words import activities, units
from ddtop.words.exits import exit_text
from ddtop.words.sentences import call_text, collective_text, file_line

_OPEN = frozenset({"scheduled", "started"})


def waits_text(place: Place) -> str | None:
    """What the place waits on, as the cell of `words.activities`; None if it does not wait."""
    word = place.waits_on
    if not word or word == "collective":
        return None
    if word == "p2p":
        return activities.P2P.cell
    known = activities.WAITS.get(word)
    return known.cell if known else clean(word)


def place_now(place: Place) -> str:
    """A place in one table cell: what it waits on and where, else the function and where."""
    return clean(f"{waits_text(place) or place.function} {file_line(place)}")


def open_call_text(call: OpenCall) -> str:
    """`recv from rank 0`, `init_process_group`."""
    return clean(call_text(call.name, call.peer, call.within))


def end_text(gone: Exit) -> str:
    """How a process ended, with the exception: `exit code 1: ValueError`, `SIGKILL (out of
    memory)`."""
    text = exit_text(gone.code, gone.signal, gone.oom)
    raised = gone.exception if gone.signal is None and gone.code is not None else None
    return f"{text}: {clean(raised.type)}" if raised else text


def oldest_call(rank: RankFacts) -> OpenCall | None:
    """The call that has been open longest."""
    return min(rank.comm.open_calls, key=lambda call: call.since_unix_ns, default=None)


class NowCell(NamedTuple):
    """What a rank does, and since when.

    `since_unix_ns`: on the clock of the snapshot. `age_s`: where only the age is known, seconds.
    """

    text: str
    since_unix_ns: int | None = None
    age_s: float | None = None


def now_text(rank: RankFacts) -> str:
    """The NOW column: what this rank does, or how it ended."""
    return doing(rank).text


def now_age_s(rank: RankFacts, time_unix_ns: int) -> float | None:
    """For how long it has been doing what `now_text` says, seconds."""
    now = doing(rank)
    if now.since_unix_ns is None:
        return now.age_s
    return max(time_unix_ns - now.since_unix_ns, 0) / units.SECOND_NS


def doing(rank: RankFacts) -> NowCell:
    """Its end, its open call, what it waits for, or else its place in the code."""
    if rank.process.exit is not None:
        return NowCell(end_text(rank.process.exit), rank.process.exit_unix_ns)
    if rank.state is State.MISSING:
        return NowCell("never seen")
    if rank.state is State.STOPPED:
        return NowCell("stopped, state T", rank.process.state_since_unix_ns)
    if rank.state is State.SILENT:
        return _silent(rank)
    if rank.state is State.LOST:
        return NowCell(f"was in {_calling(rank).text}", None, rank.agent.report_age_s)
    return _calling(rank)


def _calling(rank: RankFacts) -> NowCell:
    """From its own last report."""
    call = oldest_call(rank)
    if call is not None:
        return NowCell(open_call_text(call), call.since_unix_ns)
    return _waiting(rank) or _working(rank)


def _waiting(rank: RankFacts) -> NowCell | None:
    held = rank.comm.collective
    if rank.wait is not None:
        since = rank.wait.since_unix_ns
        if held is not None and held.seq == rank.wait.seq:
            return NowCell(clean(collective_text(held.op, held.seq)), since)
        return NowCell(clean(collective_text(rank.wait.op, rank.wait.seq)), since)
    if held is None or held.state not in _OPEN or _place_says_more(rank):
        return None
    return NowCell(clean(collective_text(held.op, held.seq)), None, rank.comm.collective_age_s)


def _working(rank: RankFacts) -> NowCell:
    if rank.reported.activity in activities.COMPUTES and not _place_says_more(rank):
        return NowCell(rank.reported.activity or "", rank.progress.last_unix_ns)
    if rank.reported.place is not None:
        # A loop at the top of a script never leaves its function, so the last progress counts too.
        known = [
            at
            for at in (rank.reported.place.since_unix_ns, rank.progress.last_unix_ns)
            if at is not None
        ]
        return NowCell(place_now(rank.reported.place), max(known, default=None))
    if rank.reported.activity is not None and rank.reported.activity != "other":
        known_wait = activities.OF_THREAD.get(rank.reported.activity)
        cell = known_wait.cell if known_wait else clean(rank.reported.activity)
        return NowCell(cell, rank.progress.last_unix_ns)
    return NowCell(clean(rank.reported.phase))


def _place_says_more(rank: RankFacts) -> bool:
    """For a rank at fault, the place is more important than the kind of work."""
    return rank.state is State.CULPRIT and rank.reported.place is not None


def _silent(rank: RankFacts) -> NowCell:
    """Its agent no longer reports, so this is what the relay sees from outside."""
    if rank.process.report is None:
        return NowCell("agent silent", None, rank.agent.report_age_s)
    seen = f"process {clean(rank.process.report.state)}"
    if rank.process.report.wchan:
        seen += f" {clean(rank.process.report.wchan)}"
    return NowCell(f"silent, {seen}", None, rank.agent.report_age_s)
