"""What a writer gives: the text of a finding. And words that most of them use."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from ddtop.diagnosis.finding import Context, Finding
from ddtop.wire.records import Place, Spot
from ddtop.words.sentences import file_line, names_of_groups, ranks_text, verb
from ddtop.words.units import duration


class Said(NamedTuple):
    """The text of one finding; `Finding` says what its parts are."""

    summary: str
    evidence: tuple[str, ...] = ()
    advice: str = ""


Writer = Callable[[Finding, Any, Context], Said]
"""It gets the finding, its record, and the moment at which it was seen."""
Around = Callable[[Finding, Any, Context, Said], Said]
"""That of a finding that is made of another one: it also gets the words of that one."""


def age_text(at: Context, since_unix_ns: int) -> str:
    """How long ago that was: `41 s`."""
    return duration((at.snapshot.time_unix_ns - since_unix_ns) / 1e9)


def group_text(at: Context, group: str) -> str:
    """The group as users know it: `mesh_dp`."""
    return names_of_groups(at.snapshot.groups).get(group, group)


def spot_text(place: Place | Spot | None, lead: str = " (", end: str = ")") -> str:
    """` (train.py:40 step)`; empty if it is not known."""
    return f"{lead}{file_line(place)} {place.function}{end}" if place is not None else ""


def waits_text(ranks: Collection[int]) -> str:
    """`ranks 0,1 wait`."""
    return f"{ranks_text(ranks)} {verb(ranks, 'waits', 'wait')}"


def that_hold(*cases: tuple[object, str]) -> list[str]:
    """The texts whose case holds."""
    return [text for holds, text in cases if holds]
