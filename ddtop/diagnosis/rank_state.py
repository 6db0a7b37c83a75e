"""Decides the state of each rank from the facts and the findings.

This is the only place that decides it. The table, filters, the map, hosts, JSON and metrics read
`RankFacts.state` of a snapshot that has passed through `with_states`, so they cannot contradict the
sentence at the top of the screen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import msgspec

from ddtop.diagnosis.finding import CRITICAL, WARNING, Finding, Verdict
from ddtop.diagnosis.kinds import Is, Kind
from ddtop.model.facts import Snapshot, State

OWN_WORD = frozenset({
    State.SILENT, State.STOPPED, State.LOST, State.MISSING, State.EXITED, State.KILLED,
})  # fmt: skip
"""States that say how a rank ended or stopped. No finding replaces them; a mark shows that the rank
is at fault (`culprits`).
"""
_CALM = frozenset({State.RUNNING, State.WAITING})


def culprits(verdict: Verdict) -> tuple[int, ...]:
    """The ranks that critical findings blame, those of the worst finding first."""
    return tuple(_culprits(verdict.findings))


def _culprits(findings: Iterable[Finding]) -> dict[int, None]:
    found: dict[int, None] = {}
    for finding in findings:
        # Such a finding names all ranks because it can blame none of them.
        if finding.kind == Kind.NO_PROGRESS and not finding.victims:
            continue
        if finding.severity == CRITICAL:
            found.update(dict.fromkeys(finding.ranks))
    return found


def states_by_finding(
    snapshot: Snapshot, findings: Iterable[Finding]
) -> dict[int, tuple[State, frozenset[State]]]:
    """The state that the findings give to each rank that they name, and the states that it may
    replace. All other ranks keep the state of their facts.
    """
    findings = tuple(findings)
    every = frozenset(State) - OWN_WORD
    states: dict[int, tuple[State, frozenset[State]]] = {}
    for rank in _culprits(findings):
        states[rank] = (State.CULPRIT, every)
    for finding in findings:
        # Ranks that wait for a straggler still move.
        if finding.severity == CRITICAL and not finding.kind.is_any(Is.MOVES):
            for rank in finding.victims:
                states.setdefault(rank, (State.BLOCKED, _CALM))
    for finding in findings:
        # A warning that names all ranks is about the job, not about single ranks.
        alone = len(finding.ranks) < len(snapshot.ranks) or len(snapshot.ranks) == 1
        if finding.severity == WARNING and alone:
            state = State.STRAGGLER if finding.kind == Kind.STRAGGLER else State.WARNING
            for rank in finding.ranks:
                states.setdefault(rank, (state, _CALM | {State.STARTING, State.JOINING}))
    return states


def with_states(snapshot: Snapshot, findings: Iterable[Finding]) -> Snapshot:
    """The snapshot with the state of each rank as it is shown. Costs only what differs."""
    states = states_by_finding(snapshot, findings)
    ranks = list(snapshot.ranks)
    changed = False
    for number, (state, replaced) in states.items():
        if not 0 <= number < len(ranks):
            continue
        rank = ranks[number]
        if rank.state is not state and rank.state in replaced:
            ranks[number] = msgspec.structs.replace(rank, state=state)
            changed = True
    return replace(snapshot, ranks=tuple(ranks)) if changed else snapshot
