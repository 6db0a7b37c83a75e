"""The first difference between the calls of the ranks of a group.

Each rank reports its turns: calls that followed another call for the first time
(`ddtop.agent.probes.calls`). Ranks in step make their turns at the same sequence numbers. The first
difference is the first turn that some members made and others, which are past that number, did not.
It counts only if it has changed the number of calls. A turn that may replace the call of the others
is no difference: the program was written like that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
    found: dict[str, tuple[int, ...]] = {}
    for turn in turns:
        found[turn.group] = (*found.get(turn.group, ()), turn.number)
    return tuple(found.items())


def uneven(every: Mapping[int, Numbers]) -> frozenset[str]:
    """The groups in which two ranks have made their turns at other numbers."""
    first: dict[str, tuple[int, ...]] = {}
    return frozenset(
        group
        for numbers in every.values()
        for group, own in numbers
        if first.setdefault(group, own) != own
    )


def partings_of(
    facts: Mapping[int, RankFields],
    turns: Mapping[int, tuple[Turn, ...]],
    names: frozenset[str],
    groups: tuple[Group, ...],
    now_unix_ns: int,
    policy: Policy,
) -> tuple[Parting, ...]:
    """The first difference of each of these groups, the earliest first."""
    found = []
    for group in groups:
        for name in {group.name, group.name + BY_STEPS} & names:
            members = {
                rank: {turn.number: turn for turn in turns[rank] if turn.group == name}
                for rank in group.ranks
                if rank in turns and rank in facts
            }
            whole = group.foreign is None and len(members) == len(group.ranks)
            parting = _first(name, members, facts) if whole else None
            if parting is not None and _is_settled(parting, now_unix_ns, policy):
                found.append(parting)
    return tuple(sorted(found, key=lambda parting: parting.since_unix_ns))


def _is_settled(parting: Parting, now_unix_ns: int, policy: Policy) -> bool:
    return now_unix_ns - parting.since_unix_ns >= policy.of(PartingLimits).settled_s * 1e9


def _first(
    name: str, members: dict[int, dict[int, Turn]], facts: Mapping[int, RankFields]
) -> Parting | None:
    if any(UNORDERED in own for own in members.values()):
        return None
    # Of a rank that has made many turns the first ones are forgotten.
    known = max((min(own) for own in members.values() if own), default=0)
    for number in sorted({number for own in members.values() for number in own}):
        made = {rank: own[number] for rank, own in members.items() if number in own}
        others = [rank for rank in members if rank not in made]
        if not others:
            continue
        if any(not _has_passed(facts[rank], name, number) for rank in others):
            return None
        if any(turn.open for turn in made.values()):
            return None
        sites = {turn.made for turn in made.values()}
        instead = {turn.instead for turn in made.values()}
        if number < known or None in instead or len(sites) > 1 or len(instead) > 1:
            continue
        # Ranks that follow a leader's calls from lines of their own are in step with it.
        usual = instead.pop()
        if all(usual in {turn.made for turn in members[rank].values()} for rank in others):
            return _parting(name, number, made, others)
    return None


def _has_passed(rank: RankFields, name: str, number: int) -> bool:
    """Whether it has made its turn at that number, if it makes one there: a call, or all steps
    before the next call."""
    least = number + name.endswith(BY_STEPS)
    return any(
        group.enqueued - (group.p2p_offset or 0) >= least
        for group in rank.comm.groups
        if group.group == name.removesuffix(BY_STEPS)
    )


def _parting(name: str, number: int, made: dict[int, Turn], others: list[int]) -> Parting:
    first = next(iter(made.values()))
    turned, stayed = (
        (tuple(sorted(made)), first.made),
        (tuple(others), first.instead or CallSite("")),
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
        since_unix_ns=min(turn.unix_ns for turn in made.values()),
    )
