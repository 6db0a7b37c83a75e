"""The first difference between the calls of the ranks of a group.

Each rank reports its turns: calls that followed another call for the first time
(`ddtop.agent.probes.calls`). Ranks in step make their turns at the same sequence numbers. The first
difference is the first turn that some members made and others, which are past that number, did not.
It counts only if it has changed the number of calls. A turn that may replace the call of the others
is not a difference: the program was written like that, and nothing can be said of its later turns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ddtop.model.facts import Parting, RankFields
from ddtop.policy import Limits, Policy
from ddtop.wire.records import BY_STEPS, UNORDERED, CallSite, Group, Turn


@dataclass(frozen=True)
class PartingLimits(Limits, of="calls-differ"):
    """When the calls of two ranks differ."""

    settled_s: float = 2.0
    """Reports of the ranks are up to a second apart."""


Numbers = tuple[tuple[str, tuple[int, ...]], ...]
"""The turns of one rank: by group, their numbers."""


def numbers_of(turns: tuple[Turn, ...]) -> Numbers:
    """What must be equal on ranks in step."""
    found: dict[str, list[int]] = {}
    for turn in turns:
        found.setdefault(turn.group, []).append(turn.number)
    return tuple((group, tuple(numbers)) for group, numbers in found.items())


def uneven(every: Iterable[Numbers]) -> frozenset[str]:
    """The groups in which two ranks have made their turns at other numbers."""
    first: dict[str, tuple[int, ...]] = {}
    return frozenset(
        group for numbers in every for group, own in numbers if first.setdefault(group, own) != own
    )


class Parted(NamedTuple):
    """A first difference, as the turns alone show it. It counts when all members that did not make
    that turn (`stayed`) are past its number."""

    name: str
    stayed: tuple[int, ...]
    parting: Parting


def compare(
    turns: Mapping[int, tuple[Turn, ...]], names: frozenset[str], groups: tuple[Group, ...]
) -> tuple[Parted, ...]:
    """The first difference in each of these groups of this job whose members all report turns."""
    found = []
    for group in groups:
        for name in {group.name, group.name + BY_STEPS} & names:
            members = {
                rank: {turn.number: turn for turn in turns[rank] if turn.group == name}
                for rank in group.ranks
                if rank in turns
            }
            whole = group.foreign is None and len(members) == len(group.ranks)
            parted = _first(name, members) if whole else None
            if parted is not None:
                found.append(parted)
    return tuple(found)


def partings_of(
    found: tuple[Parted, ...], facts: Mapping[int, RankFields], now_unix_ns: int, policy: Policy
) -> tuple[Parting, ...]:
    """The earliest one of each group that has stood long enough, the earliest first. The calls and
    the steps of a group show the same fault."""
    settled_unix_ns = now_unix_ns - policy.of(PartingLimits).settled_s * 1e9
    settled = [
        one.parting
        for one in found
        if one.parting.since_unix_ns <= settled_unix_ns
        and facts.keys() >= {*one.parting.ranks, *one.parting.others}
        and all(_passed(facts[rank], one.name) >= one.parting.seq for rank in one.stayed)
    ]
    settled.sort(key=lambda parting: parting.since_unix_ns)
    earliest = {parting.group: parting for parting in reversed(settled)}
    return tuple(parting for parting in settled if parting is earliest[parting.group])


def _first(name: str, members: dict[int, dict[int, Turn]]) -> Parted | None:
    if any(UNORDERED in own for own in members.values()):
        return None
    # Of a rank that has made many turns the first ones are forgotten.
    known = max((min(own) for own in members.values() if own), default=0)
    makers: dict[int, dict[int, Turn]] = {}
    for rank, own in members.items():
        for number, turn in own.items():
            makers.setdefault(number, {})[rank] = turn
    sites = {rank: {turn.made for turn in own.values()} for rank, own in members.items()}
    having = Counter(site for own in sites.values() for site in own)
    for number, made in sorted(makers.items()):
        if len(made) == len(members) or number < known:
            continue
        if any(turn.open for turn in made.values()):
            return None
        instead = {turn.instead for turn in made.values()}
        alike = len({turn.made for turn in made.values()}) == 1 == len(instead)
        usual = instead.pop()
        if usual is None or not alike:
            return None
        # Ranks that follow a leader's calls from lines of their own are in step with it.
        if having[usual] - sum(usual in sites[one] for one in made) == len(members) - len(made):
            others = tuple(rank for rank in members if rank not in made)
            return Parted(name, others, _parting(name, number, made, others))
    return None


def _passed(rank: RankFields, name: str) -> int:
    """The number of its last call in the group; for steps, of the call before that one. The rank
    makes no turn up to this number any more."""
    return max(
        (
            group.enqueued - (group.p2p_offset or 0) - name.endswith(BY_STEPS)
            for group in rank.comm.groups
            if group.group == name.removesuffix(BY_STEPS)
        ),
        default=UNORDERED,
    )


def _parting(name: str, number: int, made: dict[int, Turn], others: tuple[int, ...]) -> Parting:
    first = next(iter(made.values()))
    turned, stayed = (
        (tuple(sorted(made)), first.made),
        (others, first.instead or CallSite("")),
    )
    odd, even = (turned, stayed) if len(made) <= len(others) else (stayed, turned)
    return Parting(
        group=name.removesuffix(BY_STEPS),
        seq=number,
        step=first.step,
        ranks=odd[0],
        others=even[0],
        made=odd[1],
        instead=even[1],
        more=first.more if odd is turned else -first.more,
        since_unix_ns=min(turn.unix_ns for turn in made.values()),
    )
