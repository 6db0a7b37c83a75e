"""Was it right? Judges what a tool said at each moment against what the case expects."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import Any

from zoo.case import Case, Said
from zoo.place import Places
from zoo.tool import Claim, Look

NAME_S, LATER_S, AFTER_S = 16.0, 8.0, 3.0
"""How long a fault is watched until it is named: where the limit is 5 s, and how much longer than
`within_s` elsewhere. What comes AFTER_S after the right name, or after a healthy job's end, may
still be wrong.
"""
EARLY_S = 0.5
"""So much earlier than the program's own word a claim may be right: clocks and prints."""


@dataclass
class Heard:
    """A claim, and when it stood (seconds from the fault, or from the first look)."""

    kinds: list[str]
    ranks: list[int]
    severity: str
    text: str
    from_s: float
    to_s: float


@dataclass
class Outcome:
    """The claims of a tool about one run of a case. All fields can be written as JSON.

    `kind_s`, `named_s`, `placed_s`: seconds from the fault to the right kind, to the right kind
    about exactly the right ranks, and to that with the right place; None, if it never was.
    `has_place`: the case has a place to be found. `caused`, `cured`: a right finding said why it is
    so, and what to do about it; None, if the case does not say what is right. `ended_s`: from the
    first look to a healthy job's end. `wrong`: critical claims that are not right, of a healthy job
    the warnings too. `beside`: what is tolerated. `last`: what stood at the end. `unable`: why the
    tool could say nothing.
    `paused_s`, `took_s`: the longest pause of a rank, and the longest answer to a command.
    `trouble`: the run itself went wrong. `failed_itself`: a healthy program ended with an exit
    code, so what was said of it judges nobody.
    """

    case: str
    tool: str
    healthy: bool
    expected: list[str]
    within_s: float | None
    has_place: bool = False
    kind_s: float | None = None
    named_s: float | None = None
    placed_s: float | None = None
    caused: bool | None = None
    cured: bool | None = None
    stands: bool = False
    ended_s: float | None = None
    wrong: list[Heard] = field(default_factory=list)
    beside: list[Heard] = field(default_factory=list)
    last: list[Heard] = field(default_factory=list)
    unable: str = ""
    paused_s: float = 0.0
    took_s: float = 0.0
    trouble: str = ""
    failed_itself: bool = False
    slower: float = 1.0
    options: dict[str, Any] = field(default_factory=dict)
    load: float = 0.0
    date: str = ""

    @property
    def right(self) -> bool:
        """Named, and still named at the end (or, of a healthy job, not named), and nothing wrong
        on the way.
        """
        if self.trouble or self.unable or self.wrong:
            return False
        if self.healthy:
            return self.ended_s is not None
        return self.named_s is not None and self.stands

    def as_json(self) -> dict[str, Any]:
        """For a file."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Outcome:
        """From a file."""
        given = dict(values)
        for key in ("wrong", "beside", "last"):
            given[key] = [Heard(**one) for one in given[key]]
        return cls(**given)


def said_text(said: Said) -> str:
    """`not-in-collective 1,2`."""
    return f"{said[0]} {','.join(map(str, said[1]))}".strip()


def begun(case: Case, tool: str, slower: float) -> Outcome:
    """The outcome of a run that has just begun."""
    expected = [said_text(one) for one in case.expected]
    return Outcome(
        case.name,
        tool,
        case.healthy,
        expected,
        case.within_s,
        has_place=bool(case.place),
        caused=False if case.cause else None,
        cured=False if case.cure else None,
        slower=slower,
    )


def watched_s(case: Case) -> float:
    """For how long a fault is watched until it is named."""
    return NAME_S if case.within_s is None else case.within_s + LATER_S


def take(outcome: Outcome, case: Case, places: Places, look: Look, zero_unix_ns: int) -> None:
    """Judge one look. `zero_unix_ns`: when the fault began, of a healthy job when the first look
    was.
    """
    at = (look.at_unix_ns - zero_unix_ns) / 1e9
    outcome.last = [_heard(claim, at) for claim in look.claims]
    outcome.paused_s = max(outcome.paused_s, look.paused_s)
    outcome.took_s = max(outcome.took_s, look.took_s)
    outcome.unable = look.unable
    right = [claim for claim in look.claims if _matches(claim, case.expected)]
    outcome.stands = bool(right)
    if not case.healthy and at > -EARLY_S:
        kinds = {kind for kind, _ in case.expected}
        if outcome.kind_s is None and any(claim.kinds & kinds for claim in look.claims):
            outcome.kind_s = at
        if outcome.named_s is None and right:
            outcome.named_s = at
        if outcome.placed_s is None and any(places.named_in(claim.text) for claim in right):
            outcome.placed_s = at
        for claim in right:
            told = f"{claim.text}\n{claim.advice}"
            outcome.caused = outcome.caused or _is_said(case.cause, told)
            outcome.cured = outcome.cured or _is_said(case.cure, told)
    for claim in look.claims:
        _weigh(outcome, case, claim, at)


def _weigh(outcome: Outcome, case: Case, claim: Claim, at: float) -> None:
    critical = claim.severity == "critical"
    fine = _matches(claim, case.expected) and not (case.warning_only and critical)
    if (fine and at > -EARLY_S) or claim.severity == "info":
        return
    if _matches(claim, case.tolerated) and (not critical or case.restarts):
        into = outcome.beside
    else:
        into = outcome.wrong if critical or case.healthy else outcome.beside
    new = _heard(claim, at)
    for one in into:
        if (one.kinds, one.ranks, one.severity) == (new.kinds, new.ranks, new.severity):
            one.to_s = at
            return
    into.append(new)


def ended(outcome: Outcome, case: Case) -> None:
    """After the last look: a job that was restarted and goes on has nothing wrong at its end."""
    if case.restarts:
        outcome.wrong += [one for one in outcome.last if one.severity != "info"]


def _matches(claim: Claim, expected: tuple[Said, ...]) -> bool:
    return any(kind in claim.kinds and claim.ranks == ranks for kind, ranks in expected)


def _is_said(patterns: tuple[str, ...], told: str) -> bool | None:
    if not patterns:
        return None
    return any(re.search(pattern, told, re.IGNORECASE) for pattern in patterns)


def _heard(claim: Claim, at: float) -> Heard:
    kinds = sorted(claim.kinds)
    return Heard(kinds, list(claim.ranks), claim.severity, claim.text, at, at)
