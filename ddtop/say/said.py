"""Words that most writers use, and marks around what changes in a text from look to look."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar

from ddtop.diagnosis.finding import CRITICAL, INFO, WARNING, Context, Finding, Said
from ddtop.diagnosis.kinds import Kind
from ddtop.model.rank_facts import RankLimits
from ddtop.wire.records import Place, Spot
from ddtop.words import sentences, units
from ddtop.words.sentences import file_line, names_of_groups, ranks_text, verb

__all__ = [
    "CRITICAL",
    "INFO",
    "LASTS",
    "NUMBER",
    "PIDS_MOST",
    "TIME",
    "WARNING",
    "Around",
    "Context",
    "Finding",
    "Kind",
    "Said",
    "Writer",
    "about",
    "age_s",
    "age_text",
    "duration",
    "group_text",
    "lasting",
    "lasts_text",
    "long_size",
    "marked",
    "share",
    "size",
    "size_text",
    "spot_text",
    "stacks",
    "that_hold",
    "times_of",
    "waits_text",
    "without",
]

_T = TypeVar("_T")
PIDS_MOST = 4
"""Pids in an advice. A launcher's pid stands for all of its ranks, and the user has typed that."""
LASTS, TIME, NUMBER = "\x1d", "\x1e", "\x1f"
"""Marks around ` for 41 s`, around other durations, and around other measured numbers. Whoever
needs a sentence without them leaves out what is between two marks."""


def marked(text: str, mark: str = NUMBER) -> str:
    """The text between two marks."""
    return f"{mark}{text}{mark}"


def without(text: str, *marks: str) -> str:
    """The text without what is between two of these marks, and without all other marks."""
    for mark in marks:
        text = "".join(text.split(mark)[::2])
    return text.replace(LASTS, "").replace(TIME, "").replace(NUMBER, "")


def times_of(said: Said | None) -> list[str]:
    """The durations in a text: `41 s`, ` for 41 s`."""
    if said is None:
        return []
    texts = (said.sentence, said.until, said.countdown)
    return [time for mark in (LASTS, TIME) for text in texts for time in text.split(mark)[1::2]]


def duration(seconds: float) -> str:
    """`41 s`."""
    return marked(units.duration(seconds), TIME)


def lasting(seconds: float, lead: str = " for") -> str:
    """` for 41 s`: how long it has lasted. Beside the time at which it began, this is left out."""
    return marked(f"{lead} {units.duration(seconds)}", LASTS)


def about(ratio: float) -> str:
    """`85%`, in steps of five."""
    return marked(sentences.about(ratio))


def share(ratio: float) -> str:
    """`83%`."""
    return marked(f"{ratio:.0%}")


def size(value: int | None) -> str:
    """`31.0 GiB`."""
    if value is None:
        return "?"
    return marked(f"{value / 2**30:.1f} GiB" if value >= 1 << 30 else f"{value / 2**20:.0f} MiB")


def size_text(value: int | None) -> str:
    """`3.8 MiB`."""
    if value is None:
        return "?"
    for unit, power in (("TiB", 40), ("GiB", 30), ("MiB", 20)):
        if value >= 1 << power:
            return marked(f"{value / (1 << power):.1f} {unit}")
    return marked(f"{value / 1024:.0f} KiB")


def long_size(number: int) -> str:
    """`4.0 MiB`."""
    return marked(units.long_size(number))


def stacks(finding: Finding, at: Context, of: str = "") -> str:
    """`ddtop stacks` with the options `of`. With the pids if the job was started without ddtop,
    because nobody can ask such a job by its name or for one of its ranks."""
    known = at.last_known
    ranks = [known.rank(number) for number in finding.ranks] or known.ranks
    pids = [str(rank.pid) for rank in ranks if rank.from_outside and rank.pid is not None]
    return f"ddtop stacks --pid {','.join(pids[:PIDS_MOST])}" if pids else f"ddtop stacks{of}"


Writer = Callable[[Finding, Any, Context], Said]
"""It gets the finding, its record, and the moment at which it was seen."""
Around = Callable[[Finding, Any, Context, Said], Said]
"""That of a finding that is made of another one: it also gets the words of that one."""


def age_s(at: Context, since_unix_ns: int) -> float:
    """How long ago that was."""
    return (at.snapshot.time_unix_ns - since_unix_ns) / 1e9


def age_text(at: Context, since_unix_ns: int) -> str:
    """How long ago that was: `41 s`."""
    return duration(age_s(at, since_unix_ns))


def lasts_text(at: Context, since_unix_ns: int) -> str:
    """` for 41 s`; ` for at least 41 s` where that began with the look at ranks that were started
    without ddtop."""
    snapshot, lasts_s = at.snapshot, age_s(at, since_unix_ns)
    outside = any(rank.from_outside for rank in snapshot.ranks)
    first_look_s = at.policy.of(RankLimits).first_look_s
    at_least = outside and lasts_s >= snapshot.watched_s - first_look_s
    return lasting(lasts_s, " for at least" if at_least else " for")


def group_text(at: Context, group: str) -> str:
    """The group as users know it: `mesh_dp`."""
    return names_of_groups(at.snapshot.groups).of(group)


def spot_text(place: Place | Spot | None, lead: str = " (", end: str = ")") -> str:
    """` (train.py:40 step)`; empty if it is not known."""
    return f"{lead}{file_line(place)} {place.function}{end}" if place is not None else ""


def waits_text(ranks: Collection[int]) -> str:
    """`ranks 0,1 wait`."""
    return f"{ranks_text(ranks)} {verb(ranks, 'waits', 'wait')}"


def that_hold(*cases: tuple[object, _T]) -> list[_T]:
    """The texts whose case holds."""
    return [text for holds, text in cases if holds]
