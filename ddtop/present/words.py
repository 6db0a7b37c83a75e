"""What a rank does, in the fewest words that name it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import NamedTuple

from ddtop.model.state.facts import RankFacts, Snapshot, State
from ddtop.present.text import clean
from ddtop.wire.records import Collective, Exit, OpenCall, Place
from ddtop.words import units

_BUSY = frozenset({"forward", "backward", "optimizer"})
_OPEN = frozenset({"scheduled", "started"})
_WAITS_ON = {"loader": "DataLoader", "dataloader": "DataLoader", "gpu": "GPU"}
_NO_WAIT = frozenset({"computing", "running", "other", "unknown", "collective"})
_ACTIVITIES = {"cuda_sync": "CUDA sync", "loader": "DataLoader"}


def place_text(place: Place) -> str:
    """Function, file and line: `load_image data.py:40`."""
    return clean(f"{place.function} {line_text(place)}")


def line_text(place: Place) -> str:
    """File and line without the folders: `data.py:40`."""
    return clean(f"{place.file.rpartition('/')[2]}:{place.line}")


def waits_text(place: Place) -> str | None:
    """What the place waits on, None where it does not wait."""
    word = place.waits_on
    if not word or word.lower() in _NO_WAIT:
        return None
    return clean(_WAITS_ON.get(word.lower(), word))


def place_now(place: Place) -> str:
    """A place in one table cell: what it waits on and where, else the function and where."""
    waits = waits_text(place)
    return f"{waits} {line_text(place)}" if waits else place_text(place)


def op_text(op: str) -> str:
    """The operation without the backend that torch puts before it."""
    return clean(op.rpartition(":")[2] or op)


def collective_text(collective: Collective) -> str:
    """`all_reduce #74892`."""
    return f"{op_text(collective.op) or 'collective'} #{collective.seq}"


def call_text(call: OpenCall) -> str:
    """`recv from 0`, `send to 1`, `init_process_group`."""
    name = clean(call.name)
    whole = name if call.within is None else f"{clean(call.within)}: {name}"
    if call.peer is None:
        return whole
    if "recv" in name.lower() or "probe" in name.lower():
        return f"{whole} from {call.peer}"
    return f"{whole} to {call.peer}" if "send" in name.lower() else f"{whole} {call.peer}"


def signal_name(number: int) -> str:
    """`SIGKILL`; a number without a name stays a number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def exit_text(gone: Exit) -> str:
    """How a process ended: `exit code 1`, `SIGKILL, out of memory`."""
    if gone.signal is not None:
        return signal_name(gone.signal) + (", out of memory" if gone.oom else "")
    if gone.code is None:
        return "ended, code unknown"
    return f"exit code {gone.code}" + (f": {clean(gone.exception.type)}" if gone.exception else "")


def oldest_call(rank: RankFacts) -> OpenCall | None:
    """The call that has been open longest."""
    return min(rank.open_calls, key=lambda call: call.since_unix_ns, default=None)


class Doing(NamedTuple):
    """What a rank does, and since when: a time on the clock of the snapshot, or an age where only that is known."""

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


def doing(rank: RankFacts) -> Doing:
    """The one thing worth saying of it: its end, a call it is in, what it waits for, else where its code is."""
    if rank.exit is not None:
        return Doing(exit_text(rank.exit), rank.exit_unix_ns)
    if rank.state is State.MISSING:
        return Doing("never seen")
    if rank.state is State.STOPPED:
        return Doing("stopped, state T", rank.process_since_unix_ns)
    if rank.state is State.SILENT:
        return _silent(rank)
    if rank.state is State.LOST:
        return Doing(f"was in {_calling(rank).text}", None, rank.report_age_s)
    return _calling(rank)


def _calling(rank: RankFacts) -> Doing:
    """By its own last report."""
    call = oldest_call(rank)
    if call is not None:
        return Doing(call_text(call), call.since_unix_ns)
    return _waiting(rank) or _working(rank)


def _waiting(rank: RankFacts) -> Doing | None:
    held = rank.collective
    if rank.wait is not None:
        since = rank.wait.since_unix_ns
        if held is not None and held.seq == rank.wait.seq:
            return Doing(collective_text(held), since)
        return Doing(f"{op_text(rank.wait.op or 'collective')} #{rank.wait.seq}", since)
    if held is None or held.state not in _OPEN or _told_by_place(rank):
        return None
    return Doing(collective_text(held), None, rank.collective_age_s)


def _working(rank: RankFacts) -> Doing:
    if rank.activity in _BUSY and not _told_by_place(rank):
        return Doing(rank.activity or "", rank.progress_unix_ns)
    if rank.place is not None:
        # A loop at the top of a script never leaves its function: what has ended since counts.
        known = [at for at in (rank.place.since_unix_ns, rank.progress_unix_ns) if at is not None]
        return Doing(place_now(rank.place), max(known, default=None))
    if rank.activity is not None and rank.activity != "other":
        return Doing(_ACTIVITIES.get(rank.activity, clean(rank.activity)), rank.progress_unix_ns)
    return Doing(clean(rank.phase))


def _told_by_place(rank: RankFacts) -> bool:
    """Of the rank at fault people ask where it is, not what kind of work that is."""
    return rank.state is State.CULPRIT and rank.place is not None


def _silent(rank: RankFacts) -> Doing:
    """Its agent says nothing: what the relay sees of the process from outside."""
    if rank.process is None:
        return Doing("agent silent", None, rank.report_age_s)
    seen = f"process {clean(rank.process.state)}"
    if rank.process.wchan:
        seen += f" {clean(rank.process.wchan)}"
    return Doing(f"silent, {seen}", None, rank.report_age_s)


def group_label(snapshot: Snapshot, name: str) -> str:
    """A group as torch's users call it: its description, else its name."""
    group = snapshot.group(name)
    return clean((group.description if group else "") or name)


def hosts_answering(snapshot: Snapshot) -> tuple[int, int]:
    """How many of its hosts are heard, and how many it is on; one that has ended with its ranks is none of these."""
    quiet = {one.sender for one in snapshot.seen if one.quiet}
    missed = {rank.sender for rank in snapshot.ranks if rank.exit is None} & quiet if quiet else quiet
    return len(snapshot.seen) - len(quiet), len(snapshot.seen) - len(quiet) + len(missed)


def hosts_of(snapshot: Snapshot) -> int:
    """How many hosts the job is known to be on."""
    return len(snapshot.hosts) or len({rank.host for rank in snapshot.ranks if rank.host})


def backend_of(snapshot: Snapshot) -> str | None:
    """The backend of the widest group, else what the first rank announced."""
    if snapshot.groups:
        return clean(max(snapshot.groups, key=lambda group: len(group.ranks)).backend) or None
    return next((clean(name) for name in _announced(snapshot)), None)


def _announced(snapshot: Snapshot) -> Iterator[str]:
    return (rank.hello.backend for rank in snapshot.ranks if rank.hello and rank.hello.backend)


def starting(snapshot: Snapshot) -> bool:
    """Nobody has got past the start-up yet."""
    early = (State.STARTING, State.JOINING, State.MISSING, State.CULPRIT)
    return snapshot.iteration is None and all(
        rank.state in early and rank.phase in ("starting", "joining") for rank in snapshot.ranks
    )
