"""Findings about hosts: one that is lost, and one whose ranks cannot be reached."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ddtop.diagnosis.finding import CRITICAL, INFO, WARNING, Context, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.diagnosis.rendezvous import INIT, Joining, entered_unix_ns, joining_of, path_line
from ddtop.diagnosis.waiters import waits_clause
from ddtop.model.ending import comm_failure, first_to_go, has_failed
from ddtop.model.facts import Blame, HostSeen, RankFacts, Snapshot, State
from ddtop.model.wait_graph import LOST, waiters_of
from ddtop.policy import Limits, Policy
from ddtop.words.sentences import clipped, file_line, quoted, ranks_text, tensor_text, verb
from ddtop.words.units import duration

# -- `host-lost`: nothing is received from a whole host, its relay and all of its ranks, while the
#    hub and other hosts report
#
# The collectives show whether the host is down or only ddtop's connection is cut: while collectives
# with its ranks complete, its ranks are alive.


HOSTS_NAMED = 4


@dataclass(frozen=True, slots=True)
class _Lost:
    host: HostSeen
    ranks: tuple[RankFacts, ...]


@dataclass(frozen=True)
class HostLost(Limits, of=Kind.HOST_LOST, was="host_lost_"):
    """`host-lost`."""

    step_factor: float = 3.0
    """A collective with a rank of that host that completed within this many of the longest usual
    steps, at least within `host_lost_s`, shows that the rank takes part."""


def host_lost(context: Context) -> list[Finding]:
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
    cut = [host for host in lost if _takes_part(host, snapshot, policy)]
    rest = [host for host in lost if host not in cut]
    findings = [_of_gone(rest, snapshot)] if rest else []
    return [*findings, _of_cut(cut, snapshot)] if cut else findings


def _is_over(snapshot: Snapshot, policy: Policy) -> bool:
    """Whether all other ranks have ended. Then the lost ones ended with them, unless the others
    ended because of the lost host.
    """
    others = [
        rank for rank in snapshot.ranks if rank.hello is not None and rank.state is not State.LOST
    ]
    if not all(rank.gone for rank in others):
        return False
    bad = [rank for rank in others if has_failed(rank)]
    return not bad or not comm_failure(first_to_go(others, policy)[0])


def _takes_part(lost: _Lost, snapshot: Snapshot, policy: Policy) -> bool:
    at = lost.host.completing_unix_ns
    if at is None:
        return False
    step_s = max((rank.progress.step_ms or 0.0 for rank in snapshot.ranks), default=0.0) / 1000
    return (
        snapshot.time_unix_ns - at
        <= max(policy.moving_s, policy.host_lost_s, policy.of(HostLost).step_factor * step_s) * 1e9
    )


def _of_gone(lost: list[_Lost], snapshot: Snapshot) -> Finding:
    now, ranks, since = snapshot.time_unix_ns, _ranks(lost), _since_unix_ns(lost)
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
        f"{_names(lost)} ({ranks_text(ranks)}) {verb(lost, 'has', 'have')} not reported for"
        f" {silent}"
    )
    harmless = first is None and snapshot.moving > 0
    if first is not None:
        summary += f"; {waits_clause(snapshot, first, ranks, victims, it)}"
    elif harmless:
        summary += f"; no rank waits for {it} yet"
    else:
        summary += "; no other rank makes progress"
    names = " ".join(quoted(host.host.host) for host in lost[:HOSTS_NAMED])
    return Finding(
        kind=Kind.HOST_LOST,
        severity=WARNING if harmless else CRITICAL,
        ranks=ranks,
        victims=victims,
        since_unix_ns=since,
        summary=summary,
        evidence=_evidence(lost, snapshot, first),
        advice=(
            f"check that {it} {verb(lost, 'is', 'are')} up and reachable: ping {names}; then check"
            " power, link and scheduler state"
        ),
    )


def _of_cut(lost: list[_Lost], snapshot: Snapshot) -> Finding:
    now, ranks, since = snapshot.time_unix_ns, _ranks(lost), _since_unix_ns(lost)
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
            " check the network and firewalls between that host and the hub"
        ),
    )


def _ranks(lost: list[_Lost]) -> tuple[int, ...]:
    return tuple(sorted(rank.rank for host in lost for rank in host.ranks))


def _since_unix_ns(lost: list[_Lost]) -> int:
    return min(host.host.heard_unix_ns for host in lost)


def _names(lost: list[_Lost]) -> str:
    names = [host.host.host for host in lost[:HOSTS_NAMED]]
    more = f" and {len(lost) - HOSTS_NAMED} more" if len(lost) > HOSTS_NAMED else ""
    return f"{'host' if len(lost) == 1 else 'hosts'} {', '.join(names)}{more}"


def _evidence(lost: list[_Lost], snapshot: Snapshot, first: Blame | None) -> tuple[str, ...]:
    now = snapshot.time_unix_ns
    lines = []
    for host in lost[:HOSTS_NAMED]:
        lines += [
            line
            for rank in host.ranks[:2]
            if (line := _last_text(rank, host.host, now)) is not None
        ]
    answering = sum(not host.quiet for host in snapshot.seen)
    lines.append(f"{answering} of {len(snapshot.seen)} hosts answer, including the hub")
    waiter = snapshot.rank(first.waiters[0]) if first is not None else None
    if waiter is not None and (place := waiter.reported.place) is not None:
        lines.append(f"rank {waiter.rank} waits at {file_line(place)} {place.function}")
    return tuple(lines)


def _last_text(rank: RankFacts, host: HostSeen, now_unix_ns: int) -> str | None:
    """What the rank did in its last report."""
    parts = []
    if rank.progress.iteration is not None:
        parts.append(f"iteration {rank.progress.iteration:,}")
    if rank.comm.collective is not None:
        parts.append(f"{tensor_text(rank.comm.collective)} #{rank.comm.collective.seq}")
    elif (done := next((group for group in rank.comm.groups if group.last_op), None)) is not None:
        parts.append(f"after {done.last_op} #{done.enqueued - (done.p2p_offset or 0)}")
    if rank.reported.place is not None:
        parts.append(f"{file_line(rank.reported.place)} {rank.reported.place.function}")
    ago = duration((now_unix_ns - (rank.agent.heard_unix_ns or host.heard_unix_ns)) / 1e9)
    return (
        f"rank {rank.rank} on {host.host}, last report {ago} ago: {', '.join(parts)}"
        if parts
        else None
    )


# -- `peer-unreachable`: ranks reach the store, but not the address at which another rank listens
#
# Also `collective-stuck` in init_process_group: all ranks have joined, but it does not return, and
# no socket shows why.


_ADVICE = (
    "name the interface that the hosts share: GLOO_SOCKET_IFNAME (gloo), NCCL_SOCKET_IFNAME"
    " (NCCL); ip -br addr lists them; if it is right, check for a firewall between these hosts"
)
_AGAIN = (
    "start the job again by hand: ranks of a restarted job may connect to addresses of the previous"
    " attempt"
)
_MESH = re.compile(r"connectfullmesh", re.IGNORECASE)
_REMOTE = re.compile(r"remote=\[([^\]]{1,60})\]:(\d{1,5})")
_BRIDGES = ("172.17.", "192.168.122.")
"""Addresses of docker0 and virbr0, which exist on every host separately."""


@dataclass(frozen=True)
class PeerUnreachable(Limits, of=Kind.PEER_UNREACHABLE, was=""):
    """`peer-unreachable`."""

    init_stuck_limit_s: float = 15.0
    """All ranks are in init_process_group and make no progress. It takes a second after the last
    one has come, and ten more where a name server does not answer."""
    init_stuck_rank_s: float = 0.05
    """... and this much more for each rank: thousands take turns at the store."""
    init_stuck_critical_s: float = 60.0
    """... and critical from here on."""


def unreachable(context: Context) -> list[Finding]:
    """Finds why ranks that have all reached the store remain inside init_process_group."""
    snapshot, policy = context.snapshot, context.policy
    joining = joining_of(snapshot)
    if joining is None:
        return []
    if not joining.inside:
        return _after_the_end(snapshot, joining)
    return _cannot_connect(snapshot, joining, policy) or _does_not_return(snapshot, joining, policy)


def _cannot_connect(snapshot: Snapshot, joining: Joining, policy: Policy) -> list[Finding]:
    dialling = [
        rank
        for rank in joining.inside
        if _dials(rank) and _waited_s(snapshot, rank) > policy.init_missing_limit_s
    ]
    if not dialling:
        return []
    dialled = sorted({dial for rank in dialling for dial in _dials(rank)})
    found = [
        rank
        for rank in snapshot.ranks
        if rank.comm.rendezvous is not None and set(rank.comm.rendezvous.listens) & set(dialled)
    ]
    ranks = tuple(rank.rank for rank in found)
    callers = tuple(rank.rank for rank in dialling)
    whose = f"{ranks_text(ranks)} at " if ranks else ""
    waited_s = max(_waited_s(snapshot, rank) for rank in dialling)
    return [
        Finding(
            kind=Kind.PEER_UNREACHABLE,
            severity=CRITICAL,
            ranks=ranks,
            victims=joining.waiting_without(ranks),
            since_unix_ns=joining.since_unix_ns,
            summary=(
                f"{ranks_text(callers)} {verb(callers, 'has', 'have')} reached the store, but not"
                f" {whose}{', '.join(dialled[:4])}{_kind_of(dialled, snapshot)}, in {INIT} for"
                f" {duration(waited_s)}"
            ),
            evidence=tuple(
                f"rank {rank.rank} on {rank.host} tries to connect to {', '.join(_dials(rank))}"
                " and gets no answer"
                for rank in dialling[:6]
            )
            + tuple(line for rank in found[:4] if (line := _interface_line(rank)) is not None),
            advice=_advice(snapshot),
        )
    ]


def _does_not_return(snapshot: Snapshot, joining: Joining, policy: Policy) -> list[Finding]:
    """All ranks are inside and make no progress, so no rank is late and the call itself fails.

    A name server that does not answer takes ten seconds, and no socket shows that, so the limits
    are long. With torch 2.13 two of ten restarts of `torchrun --standalone` after a SIGKILL hung
    like this for good, with an address of the attempt before in the store.
    """
    inside, size = joining.inside, snapshot.world_size
    if (
        joining.init != INIT
        or size < 2
        or len(inside) != size
        or any(rank.process.working is not False for rank in inside)
    ):
        return []
    waited_s = min(_waited_s(snapshot, rank) for rank in inside)
    more_s = policy.of(PeerUnreachable).init_stuck_rank_s * size
    if waited_s <= policy.of(PeerUnreachable).init_stuck_limit_s + more_s:
        return []
    evidence = [f"all {size} ranks are inside, the last one for {duration(waited_s)}"]
    advice = (
        "see which call they are in: ddtop stacks --native; name the interface that the hosts"
        " share: GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME"
    )
    if snapshot.attempt:
        evidence.append(
            f"attempt {snapshot.attempt} of this job: the store may still hold keys of the"
            " previous attempt"
        )
        advice = f"{_AGAIN}; {advice}"
    return [
        Finding(
            kind=Kind.COLLECTIVE_STUCK,
            severity=CRITICAL
            if waited_s > policy.of(PeerUnreachable).init_stuck_critical_s + more_s
            else WARNING,
            ranks=(),
            victims=joining.victims,
            since_unix_ns=max(entered_unix_ns(rank) or 0 for rank in inside),
            summary=(
                f"{ranks_text(joining.victims)} have all been in {INIT} for {duration(waited_s)};"
                " no rank is missing, and none makes progress"
            ),
            evidence=(
                *evidence,
                *(line for rank in inside[:4] if (line := path_line(rank)) is not None),
            ),
            advice=advice,
            op=INIT,
        )
    ]


def _after_the_end(snapshot: Snapshot, joining: Joining) -> list[Finding]:
    """Ranks failed while they connected to each other, and no rank ended before them."""
    failed = [
        rank
        for rank in joining.gave_up
        if rank.reported.exception is not None and _MESH.search(rank.reported.exception.text)
    ]
    if not failed:
        return []
    texts = [rank.reported.exception.text for rank in failed if rank.reported.exception is not None]
    dialled = sorted(
        {f"{match[1]}:{match[2]}" for text in texts if (match := _REMOTE.search(text))}
    )
    callers = tuple(rank.rank for rank in failed)
    at = f" at {', '.join(dialled[:4])}" if dialled else ""
    return [
        Finding(
            kind=Kind.PEER_UNREACHABLE,
            severity=CRITICAL,
            ranks=(),
            victims=joining.victims,
            since_unix_ns=joining.since_unix_ns,
            summary=(
                f"{ranks_text(callers)} reached the store, but not the"
                f" others{at}{_kind_of(dialled, snapshot)}, and gave up in {INIT}"
            ),
            evidence=tuple(
                f"rank {rank} raised {clipped(text, 160)}"
                for rank, text in zip(callers[:4], texts, strict=False)
            ),
            advice=_advice(snapshot),
        )
    ]


def _dials(rank: RankFacts) -> tuple[str, ...]:
    way = rank.comm.rendezvous
    return way.dials if way is not None and "ESTABLISHED" in (way.sockets or ()) else ()


def _waited_s(snapshot: Snapshot, rank: RankFacts) -> float:
    return (snapshot.time_unix_ns - (entered_unix_ns(rank) or snapshot.time_unix_ns)) / 1e9


def _advice(snapshot: Snapshot) -> str:
    return f"{_AGAIN}; {_ADVICE}" if snapshot.attempt else _ADVICE


def _kind_of(dialled: list[str], snapshot: Snapshot) -> str:
    if any(address.startswith("127.") for address in dialled):
        several = len({rank.host for rank in snapshot.ranks if rank.host}) > 1
        return " (loopback: each host reaches only itself)" if several else ""
    return (
        " (a container bridge)" if any(address.startswith(_BRIDGES) for address in dialled) else ""
    )


def _interface_line(rank: RankFacts) -> str | None:
    if rank.hello is None:
        return None
    names = [
        f"{name}={rank.hello.environment[name]}"
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
        if name in rank.hello.environment
    ]
    return f"rank {rank.rank} on {rank.host}: {', '.join(names) or 'GLOO_SOCKET_IFNAME is not set'}"
