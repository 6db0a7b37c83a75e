"""Findings about hosts: one that is lost, and one whose ranks cannot be reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ddtop.diagnosis.rendezvous import INIT, Joining, entered_unix_ns, joining_of, says
from ddtop.diagnosis.rule import (
    CRITICAL,
    INFO,
    WARNING,
    Context,
    Explanation,
    Finding,
    Kind,
    Limits,
    Policy,
    RuleRow,
)
from ddtop.model.ending import comm_failure, first_to_go, has_failed
from ddtop.model.errors import Says
from ddtop.model.facts import Blame, HostSeen, RankFacts, Snapshot, State
from ddtop.model.wait_graph import LOST, waiters_of

# -- `host-lost`: nothing is received from a whole host, its relay and all of its ranks, while the
#    hub and other hosts report
#
# The collectives show whether the host is down or only ddtop's connection is cut: while collectives
# with its ranks complete, its ranks are alive.


class Lost(NamedTuple):
    """Lost hosts with their ranks, and the first wait for one of these."""

    hosts: Sequence[tuple[HostSeen, Sequence[RankFacts]]]
    first: Blame | None = None


@dataclass(frozen=True)
class HostLost(Limits, of=Kind.HOST_LOST):
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
    lost = [(host, by_sender[host.sender]) for host in snapshot.seen if host.sender in by_sender]
    cut = [host for host in lost if _takes_part(host[0], snapshot, policy)]
    rest = [host for host in lost if host not in cut]
    findings = [_of_gone(rest, snapshot)] if rest else []
    return [*findings, _finding(INFO, (), Lost(cut))] if cut else findings


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


def _takes_part(lost: HostSeen, snapshot: Snapshot, policy: Policy) -> bool:
    at = lost.completing_unix_ns
    if at is None:
        return False
    step_s = max((rank.progress.step_ms or 0.0 for rank in snapshot.ranks), default=0.0) / 1000
    return (
        snapshot.time_unix_ns - at
        <= max(policy.moving_s, policy.host_lost_s, policy.of(HostLost).step_factor * step_s) * 1e9
    )


def _of_gone(hosts: Sequence[tuple[HostSeen, Sequence[RankFacts]]], snapshot: Snapshot) -> Finding:
    ranks = {rank.rank for _, theirs in hosts for rank in theirs}
    blames = [
        blame
        for blame in snapshot.blames
        if blame.condition == LOST and blame.due and blame.root in ranks
    ]
    first = min(blames, key=lambda blame: blame.since_unix_ns, default=None)
    severity = WARNING if first is None and snapshot.moving > 0 else CRITICAL
    return _finding(severity, sorted(waiters_of(blames) - ranks), Lost(hosts, first))


def _finding(severity: str, victims: Sequence[int], seen: Lost) -> Finding:
    ranks = sorted(rank.rank for _, theirs in seen.hosts for rank in theirs)
    since = min(host.heard_unix_ns for host, _ in seen.hosts)
    return Finding(Kind.HOST_LOST, severity, tuple(ranks), tuple(victims), since, seen=seen)


# -- `peer-unreachable`: ranks reach the store, but not the address at which another rank listens
#
# Also `collective-stuck` in init_process_group: all ranks have joined, but it does not return, and
# no socket shows why.


class PartedHosts(NamedTuple):
    """The ranks that try to connect to others in vain, or that failed there."""

    joining: Joining
    ranks: Sequence[RankFacts]


class NotReturned(NamedTuple):
    """All ranks are inside."""

    joining: Joining


@dataclass(frozen=True)
class PeerUnreachable(Limits, of=Kind.PEER_UNREACHABLE):
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
        return _after_the_end(joining)
    return _cannot_connect(snapshot, joining, policy) or _does_not_return(snapshot, joining, policy)


def _cannot_connect(snapshot: Snapshot, joining: Joining, policy: Policy) -> list[Finding]:
    dialling = [
        rank
        for rank in joining.inside
        if dials(rank) and waited_s(snapshot, rank) > policy.init_missing_limit_s
    ]
    if not dialling:
        return []
    dialled = {dial for rank in dialling for dial in dials(rank)}
    ranks = tuple(
        rank.rank
        for rank in snapshot.ranks
        if rank.comm.rendezvous is not None and set(rank.comm.rendezvous.listens) & dialled
    )
    return [_apart(ranks, PartedHosts(joining, dialling))]


def _apart(ranks: tuple[int, ...], seen: PartedHosts) -> Finding:
    victims, since = seen.joining.waiting_without(ranks), seen.joining.since_unix_ns
    return Finding(Kind.PEER_UNREACHABLE, CRITICAL, ranks, victims, since, seen=seen)


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
    since_s = min(waited_s(snapshot, rank) for rank in inside)
    limits, more_s = policy.of(PeerUnreachable), policy.of(PeerUnreachable).init_stuck_rank_s * size
    if since_s <= limits.init_stuck_limit_s + more_s:
        return []
    return [
        Finding(
            Kind.COLLECTIVE_STUCK,
            CRITICAL if since_s > limits.init_stuck_critical_s + more_s else WARNING,
            (),
            joining.victims,
            max(entered_unix_ns(rank) or 0 for rank in inside),
            op=INIT,
            seen=NotReturned(joining),
        )
    ]


def _after_the_end(joining: Joining) -> list[Finding]:
    """Ranks failed while they connected to each other, and no rank ended before them."""
    failed = [rank for rank in joining.gave_up if says(rank, Says.MESH)]
    return [_apart((), PartedHosts(joining, failed))] if failed else []


def dials(rank: RankFacts) -> tuple[str, ...]:
    """The addresses that it tries in vain, once it has reached the store."""
    way = rank.comm.rendezvous
    return way.dials if way is not None and "ESTABLISHED" in (way.sockets or ()) else ()


def waited_s(snapshot: Snapshot, rank: RankFacts) -> float:
    """How long it has been inside (s)."""
    return (snapshot.time_unix_ns - (entered_unix_ns(rank) or snapshot.time_unix_ns)) / 1e9


ROWS = (
    RuleRow(
        unreachable,
        (Kind.PEER_UNREACHABLE, Kind.COLLECTIVE_STUCK),
        "the addresses that a rank inside init_process_group connects to",
        silenced_by=("rendezvous", "starting"),
    ),
    RuleRow(
        host_lost,
        (Kind.HOST_LOST,),
        "when each host last reported, and whether collectives with its ranks complete",
        needs=("seen",),
    ),
)
PAGES = (
    Explanation(
        kind=Kind.HOST_LOST,
        severity="critical; a warning while no rank waits; info while its collectives still"
        " complete",
        brief="a whole host has stopped reporting",
        meaning=(
            "The relay of a host and all of its ranks stopped reporting at the same time, while"
            " the hub and other hosts still report. The host is down or hangs, or its network is"
            " cut. Its ranks are `lost`: their last reports are old, and no other finding uses"
            " them."
        ),
        found=(
            (
                "Nothing has arrived from that host for {host_lost_s}, on the hub's clock. If only"
                " the relay had died, a new one would have replaced it by then. While the hub"
                " itself does not report, no host counts as lost. A host is not lost if all its"
                " ranks had ended."
            ),
            (
                "It is critical if ranks of other hosts wait for its ranks, and a warning if none"
                " waits and the others make progress."
            ),
            (
                "It is an info if a collective with its ranks has completed since then. The ranks "
                "are alive, and only ddtop's own connection is cut."
            ),
        ),
        steps=(
            "Is it up, and can it be reached from the hub's host?\nping HOST; ssh HOST uptime",
            (
                "What does the scheduler say about it?\nsinfo -R; scontrol show node HOST; kubectl"
                " describe node HOST"
            ),
            (
                "If it is up, look at its network link and its log:\nip -s link; dmesg -T | tail"
                " -50; ibstat"
            ),
            (
                "If it is down, the others wait until torch's timeout. End the job and start it"
                " without that host, or let torchrun do that (--nnodes=MIN:MAX --max-restarts)."
            ),
            (
                "If only ddtop's connection is cut, check its address and port on that host:\nddtop"
                " doctor"
            ),
        ),
        no_demo="it takes two hosts, and a network that is cut between them",
    ),
    Explanation(
        kind=Kind.PEER_UNREACHABLE,
        severity="critical",
        brief="ranks reach the store, but not each other",
        meaning=(
            "The ranks reach the store and have each other's addresses, but some of these addresses"
            " cannot be reached. A host has several network interfaces, and the library chose one"
            " that the others cannot reach: loopback, a container bridge, a second network card."
        ),
        found=(
            (
                "A rank inside init_process_group has a connection to the store and has been"
                " trying to reach another address for {init_missing_limit_s}. The listening"
                " sockets of the other ranks show whose address it is."
            ),
        ),
        steps=(
            "Which networks do the hosts share?\nip -br addr",
            (
                "Name the shared one on all ranks (for gloo; NCCL uses NCCL_SOCKET_IFNAME):\n"
                "export GLOO_SOCKET_IFNAME=eth0"
            ),
            "The host's own name must not resolve to 127.0.1.1:\ngetent hosts $(hostname)",
            "If the address is right, a firewall may drop the packets:\nnc -zv ADDR PORT",
        ),
        no_demo="it takes two hosts, or interfaces that cannot reach each other",
    ),
)
