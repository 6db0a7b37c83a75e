"""`host-lost`: nothing is received from a whole host, its relay and all of its ranks, while the hub
and other hosts report.

The collectives show whether the host is down or only ddtop's connection is cut: while collectives
with its ranks complete, its ranks are alive.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddtop.diagnosis.context import Context
from ddtop.diagnosis.finding import CRITICAL, INFO, WARNING, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.diagnosis.waiters import waits_clause
from ddtop.model.state.ending import comm_failure, failed, first_to_go
from ddtop.model.state.facts import Blame, RankFacts, Snapshot, State
from ddtop.model.state.host_facts import HostSeen
from ddtop.model.waits.wait_graph import LOST, waiters_of
from ddtop.policy import Policy
from ddtop.words.ranks import ranks_text, verb
from ddtop.words.sentences import file_line, tensor_text
from ddtop.words.units import duration

HOSTS_NAMED = 4


@dataclass(frozen=True, slots=True)
class _Lost:
    host: HostSeen
    ranks: tuple[RankFacts, ...]


def rule(context: Context) -> list[Finding]:
    """One finding for all lost hosts whose ranks still take part in collectives, and one for the
    other lost hosts.
    """
    snapshot, policy = context.last_known, context.policy
    ranks = [rank for rank in snapshot.ranks if rank.state is State.LOST]
    if not ranks or _is_over(snapshot, policy):
        return []
    by_sender: dict[str | None, list[RankFacts]] = {}
    for rank in ranks:
        by_sender.setdefault(rank.agent.sender, []).append(rank)
    lost = [
        _Lost(host, tuple(by_sender[host.sender]))
        for host in snapshot.seen
        if host.sender in by_sender
    ]
    cut = [one for one in lost if _takes_part(one, snapshot, policy)]
    rest = [one for one in lost if one not in cut]
    found = [_of_gone(rest, snapshot)] if rest else []
    return [*found, _of_cut(cut, snapshot)] if cut else found


def _is_over(snapshot: Snapshot, policy: Policy) -> bool:
    """Whether all other ranks have ended. Then the lost ones ended with them, unless the others
    ended because of the lost host.
    """
    others = [
        rank for rank in snapshot.ranks if rank.hello is not None and rank.state is not State.LOST
    ]
    if not all(rank.gone for rank in others):
        return False
    bad = [rank for rank in others if failed(rank)]
    return not bad or not comm_failure(first_to_go(others, policy)[0])


def _takes_part(lost: _Lost, snapshot: Snapshot, policy: Policy) -> bool:
    at = lost.host.completing_unix_ns
    if at is None:
        return False
    step_s = max((rank.progress.step_ms or 0.0 for rank in snapshot.ranks), default=0.0) / 1000
    return (
        snapshot.time_unix_ns - at
        <= max(policy.moving_s, policy.host_lost_s, policy.host_lost_step_factor * step_s) * 1e9
    )


def _of_gone(lost: list[_Lost], snapshot: Snapshot) -> Finding:
    now, ranks, since = snapshot.time_unix_ns, _ranks(lost), _since(lost)
    blames = [
        blame
        for blame in snapshot.blames
        if blame.condition == LOST and blame.due and blame.root in set(ranks)
    ]
    first = min(blames, key=lambda blame: blame.since_unix_ns, default=None)
    victims = tuple(sorted(waiters_of(blames) - set(ranks)))
    it = "it" if len(lost) == 1 else "them"
    silent = duration((now - since) / 1e9)
    summary = (
        f"{_names(lost)} ({ranks_text(ranks)}) {verb(range(len(lost)), 'has', 'have')} not been"
        f" heard for {silent}"
    )
    harmless = first is None and snapshot.moving > 0
    if first is not None:
        summary += f"; {waits_clause(snapshot, first, ranks, victims, it)}"
    elif harmless:
        summary += f"; nobody waits for {it} yet"
    else:
        summary += "; no other rank makes progress"
    names = " ".join(one.host.host for one in lost[:HOSTS_NAMED])
    return Finding(
        kind=Kind.HOST_LOST,
        severity=WARNING if harmless else CRITICAL,
        ranks=ranks,
        victims=victims,
        since_unix_ns=since,
        summary=summary,
        evidence=_evidence(lost, snapshot, first),
        advice=(
            f"see whether {it} {verb(range(len(lost)), 'is', 'are')} up and can be reached: ping"
            f" {names}; then check its power, its link and its state in the scheduler"
        ),
    )


def _of_cut(lost: list[_Lost], snapshot: Snapshot) -> Finding:
    now, ranks, since = snapshot.time_unix_ns, _ranks(lost), _since(lost)
    summary = (
        f"only ddtop's connection to {_names(lost)} ({ranks_text(ranks)}) has been cut for"
        f" {duration((now - since) / 1e9)}: collectives with {'its' if len(lost) == 1 else 'their'}"
        " ranks still complete, and the job continues"
    )
    return Finding(
        kind=Kind.HOST_LOST,
        severity=INFO,
        ranks=ranks,
        victims=(),
        since_unix_ns=since,
        summary=summary,
        evidence=_evidence(lost, snapshot, None),
        advice=(
            "nothing to fix in the job; ddtop cannot see these ranks until the connection is back:"
            " look at the network and firewalls between that host and the hub"
        ),
    )


def _ranks(lost: list[_Lost]) -> tuple[int, ...]:
    return tuple(sorted(rank.rank for one in lost for rank in one.ranks))


def _since(lost: list[_Lost]) -> int:
    return min(one.host.heard_unix_ns for one in lost)


def _names(lost: list[_Lost]) -> str:
    names = [one.host.host for one in lost[:HOSTS_NAMED]]
    more = f" and {len(lost) - HOSTS_NAMED} more" if len(lost) > HOSTS_NAMED else ""
    return f"{'host' if len(lost) == 1 else 'hosts'} {', '.join(names)}{more}"


def _evidence(lost: list[_Lost], snapshot: Snapshot, first: Blame | None) -> tuple[str, ...]:
    now = snapshot.time_unix_ns
    lines = []
    for one in lost[:HOSTS_NAMED]:
        lines += [
            line for rank in one.ranks[:2] if (line := _last(rank, one.host, now)) is not None
        ]
    answering = sum(not one.quiet for one in snapshot.seen)
    lines.append(f"{answering} of {len(snapshot.seen)} hosts answer, the hub among them")
    waiter = snapshot.rank(first.waiters[0]) if first is not None else None
    if waiter is not None and (place := waiter.reported.place) is not None:
        lines.append(f"rank {waiter.rank} waits at {file_line(place)} {place.function}")
    return tuple(lines)


def _last(rank: RankFacts, host: HostSeen, now_unix_ns: int) -> str | None:
    """What the rank did in its last report."""
    parts = []
    if rank.progress.iteration is not None:
        parts.append(f"iteration {rank.progress.iteration:,}")
    if rank.comm.collective is not None:
        parts.append(f"{tensor_text(rank.comm.collective)} #{rank.comm.collective.seq}")
    elif (done := next((one for one in rank.comm.groups if one.last_op), None)) is not None:
        parts.append(f"after {done.last_op} #{done.enqueued - (done.p2p_offset or 0)}")
    if rank.reported.place is not None:
        parts.append(f"{file_line(rank.reported.place)} {rank.reported.place.function}")
    ago = duration((now_unix_ns - (rank.agent.heard_unix_ns or host.heard_unix_ns)) / 1e9)
    return (
        f"rank {rank.rank} on {host.host}, last heard {ago} ago: {', '.join(parts)}"
        if parts
        else None
    )
