"""`collective-stuck`: every member has joined the same collective, and it does not complete."""

from __future__ import annotations

from dataclasses import dataclass

from ddtop.diagnosis.finding import CRITICAL, Context, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.diagnosis.nccl import building_line, ras_lines, watchdog_line
from ddtop.model.facts import RankFacts, Snapshot, State, Wait
from ddtop.policy import Waits
from ddtop.wire.names import MPI_FILE_COLLECTIVES
from ddtop.words.sentences import collective_text, names_of_groups, ranks_text, verb
from ddtop.words.units import duration


@dataclass(frozen=True)
class Stuck(Waits, of=Kind.COLLECTIVE_STUCK, was=""):
    """`collective-stuck`."""


PLACES_MAX = 4
_WITH_ROOT = frozenset({"broadcast", "scatter", "gather", "reduce"})


def rule(context: Context) -> list[Finding]:
    """One finding for each group whose members all wait in the first collective that has not
    completed.
    """
    snapshot = context.snapshot
    findings = []
    by_group: dict[str, list[Wait]] = {}
    for wait in snapshot.waits:
        by_group.setdefault(wait.group, []).append(wait)
    for group in snapshot.groups:
        waits = by_group.get(group.name, [])
        if not waits or len(waits) != len(group.ranks) or not _one_collective(waits):
            continue
        # Writing a large file can take minutes.
        if any(wait.op in MPI_FILE_COLLECTIVES for wait in waits):
            continue
        if all(not wait.behind for wait in _first_waits(waits)) and _stands(
            context, waits, "nccl" in group.backend
        ):
            findings.append(_finding(context, group.name, waits))
    return findings


def _first_waits(waits: list[Wait]) -> list[Wait]:
    """The waits in the first collective that has not completed."""
    first = min(wait.seq for wait in waits)
    return [wait for wait in waits if wait.seq == first]


def _one_collective(waits: list[Wait]) -> bool:
    """Whether all wait because of the same collective. A collective with a root may complete on
    some ranks first; these then wait in the next one.
    """
    inside = _first_waits(waits)
    return len(inside) == len(waits) or all(wait.op in _WITH_ROOT for wait in inside)


def _stands(context: Context, waits: list[Wait], nccl: bool) -> bool:
    members = [context.snapshot.rank(wait.rank) for wait in waits]
    if any(
        rank.gone or rank.state in (State.STOPPED, State.SILENT) or not _idles(rank, nccl)
        for rank in members
    ):
        return False
    healthy_s = max(rank.comm.healthy_wait_max_ms or 0.0 for rank in members) / 1000
    limit_s = max(context.policy.wait_s(Stuck), context.policy.healthy_wait_factor * healthy_s)
    return context.snapshot.time_unix_ns - max(wait.since_unix_ns for wait in waits) > limit_s * 1e9


def _idles(rank: RankFacts, nccl: bool) -> bool:
    # A rank spins while it waits for its GPU, whether the GPU computes or not. Only the power of
    # the GPU shows the difference.
    return rank.process.working is False or (nccl and rank.gpu.waits is True)


def _finding(context: Context, group: str, waits: list[Wait]) -> Finding:
    since = max(wait.since_unix_ns for wait in waits)
    victims = tuple(wait.rank for wait in waits)
    name = names_of_groups(context.snapshot.groups).get(group, group)
    inside = _first_waits(waits)
    first = inside[0]
    what = collective_text(first.op, first.seq, name)
    members = [context.snapshot.rank(rank) for rank in victims]
    evidence = [
        f"all {len(victims)} members have enqueued #{first.seq}; none is elsewhere, stopped or gone"
    ]
    more = (building_line(members), watchdog_line(members, since, context.snapshot.time_unix_ns))
    evidence += [line for line in more if line is not None] + ras_lines(
        context.snapshot, context.policy
    )
    where = "check the network, not the code"
    advice = "check the links between the hosts: ip -s link, ss -ti (send queues, retransmits)"
    if any(wait.op is None for wait in waits):
        # Different operations with the same number block all ranks in the same way.
        where = (
            "either the ranks call different operations, which is not known here, or the network"
            " fails"
        )
        evidence += _lines(members)
        advice = f"check that all ranks call the same operation (ddtop stacks); if so, {advice}"
    if len(inside) < len(waits):
        where = (
            "the calls differ in something that is not recorded, such as the root, or the network"
            " fails"
        )
        evidence += _lines(members)
        advice = (
            f"check that all ranks pass the same root and sizes (ddtop stacks); if so, {advice}"
        )
    return Finding(
        kind=Kind.COLLECTIVE_STUCK,
        severity=CRITICAL,
        ranks=(),
        victims=victims,
        since_unix_ns=since,
        summary=f"{_state(context.snapshot, waits, what, since)}; no rank is missing: {where}",
        evidence=tuple(evidence),
        advice=advice,
        group=group,
        op=first.op,
        seq=first.seq,
    )


def _state(snapshot: Snapshot, waits: list[Wait], what: str, since_unix_ns: int) -> str:
    """On which ranks it has not completed, and on which it has."""
    lasts = f"has not completed for {duration((snapshot.time_unix_ns - since_unix_ns) / 1e9)}"
    inside = {wait.rank for wait in _first_waits(waits)}
    passed = [wait.rank for wait in waits if wait.rank not in inside]
    if not passed:
        return f"{ranks_text(sorted(inside))} are all in {what}, which {lasts}"
    return f"{what} {lasts} on {ranks_text(sorted(inside))}, but it has on {ranks_text(passed)}"


def _lines(members: list[RankFacts]) -> list[str]:
    """Where the ranks are in the program, a line for each place; ranks at one place together."""
    found: dict[str, list[int]] = {}
    for member in members:
        place = member.reported.place
        if place is not None:
            below = f" › {place.callee}" if place.callee else ""
            text = f"at {place.file}:{place.line} {place.function}{below}"
            found.setdefault(text, []).append(member.rank)
    lines = [
        f"{ranks_text(ranks)} {verb(ranks, 'is', 'are')} {text}" for text, ranks in found.items()
    ]
    return lines[:PLACES_MAX]
