"""`peer-unreachable`: ranks reach the store, but not the address at which another rank listens.

Also `collective-stuck` in init_process_group: all ranks have joined, but it does not return, and no
socket shows why.
"""

from __future__ import annotations

import re

from ddtop.diagnosis.context import Context
from ddtop.diagnosis.finding import CRITICAL, WARNING, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.diagnosis.rendezvous import INIT, Joining, entered_unix_ns, joining_of, path_line
from ddtop.model.state.facts import RankFacts, Snapshot
from ddtop.policy import Policy
from ddtop.words.ranks import ranks_text, verb
from ddtop.words.sentences import clipped
from ddtop.words.units import duration

_ADVICE = (
    "name the interface that the hosts share: GLOO_SOCKET_IFNAME (gloo), NCCL_SOCKET_IFNAME (NCCL);"
    " ip -br addr lists them; or a firewall drops the packets between these hosts"
)
_MESH = re.compile(r"connectfullmesh", re.IGNORECASE)
_REMOTE = re.compile(r"remote=\[([^\]]{1,60})\]:(\d{1,5})")
_BRIDGES = ("172.17.", "192.168.122.")
"""Addresses of docker0 and virbr0, which exist on every host separately."""


def rule(context: Context) -> list[Finding]:
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
        if _dials(rank) and _waited_s(snapshot, rank) > policy.init_missing_limit_s
    ]
    if not dialling:
        return []
    dialled = sorted({one for rank in dialling for one in _dials(rank)})
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
            victims=joining.without(ranks),
            since_unix_ns=joining.since_unix_ns,
            summary=(
                f"{ranks_text(callers)} {verb(callers, 'has', 'have')} reached the store, but not"
                f" {whose}{', '.join(dialled[:4])}{_kind_of(dialled)}, in {INIT} for"
                f" {duration(waited_s)}"
            ),
            evidence=tuple(
                f"rank {rank.rank} on {rank.host} connects to {', '.join(_dials(rank))} without an"
                " answer"
                for rank in dialling[:6]
            )
            + tuple(line for rank in found[:4] if (line := _interface_line(rank)) is not None),
            advice=_ADVICE,
        )
    ]


def _does_not_return(snapshot: Snapshot, joining: Joining, policy: Policy) -> list[Finding]:
    """All ranks are inside and make no progress, so no rank is late and the call itself fails."""
    inside, size = joining.inside, snapshot.world_size
    if (
        joining.init != INIT
        or size < 2
        or len(inside) != size
        or any(rank.process.working is not False for rank in inside)
    ):
        return []
    waited_s = min(_waited_s(snapshot, rank) for rank in inside)
    more_s = policy.init_stuck_rank_s * size
    if waited_s <= policy.init_stuck_limit_s + more_s:
        return []
    evidence = [f"all {size} ranks are inside, the last of them for {duration(waited_s)}"]
    advice = (
        "see in which call: ddtop stacks --native; name the interface that they share:"
        " GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME"
    )
    if snapshot.attempt:
        evidence.append(
            f"attempt {snapshot.attempt} of this job: the store may still hold keys of the attempt"
            " before"
        )
        advice = (
            "start the job again by hand: ranks of a restarted job may connect to addresses of the"
            f" attempt before; {advice}"
        )
    return [
        Finding(
            kind=Kind.COLLECTIVE_STUCK,
            severity=CRITICAL if waited_s > policy.init_stuck_critical_s + more_s else WARNING,
            ranks=(),
            victims=joining.victims,
            since_unix_ns=max(entered_unix_ns(rank) or 0 for rank in inside),
            summary=(
                f"all of {ranks_text(joining.victims)} have been in {INIT} for"
                f" {duration(waited_s)}; no rank is missing, and none makes progress"
            ),
            evidence=(
                *evidence,
                *(line for rank in inside[:4] if (line := path_line(rank)) is not None),
            ),
            advice=advice,
            op=INIT,
        )
    ]


def _after_the_end(joining: Joining) -> list[Finding]:
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
        {f"{found[1]}:{found[2]}" for text in texts if (found := _REMOTE.search(text))}
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
                f" others{at}{_kind_of(dialled)}, and gave up in {INIT}"
            ),
            evidence=tuple(
                f"rank {rank} raised {clipped(text, 160)}"
                for rank, text in zip(callers[:4], texts, strict=False)
            ),
            advice=_ADVICE,
        )
    ]


def _dials(rank: RankFacts) -> tuple[str, ...]:
    way = rank.comm.rendezvous
    return way.dials if way is not None and "ESTABLISHED" in (way.sockets or ()) else ()


def _waited_s(snapshot: Snapshot, rank: RankFacts) -> float:
    return (snapshot.time_unix_ns - (entered_unix_ns(rank) or snapshot.time_unix_ns)) / 1e9


def _kind_of(dialled: list[str]) -> str:
    if any(one.startswith("127.") for one in dialled):
        return " (loopback: on each host another address)"
    return " (a bridge of containers)" if any(one.startswith(_BRIDGES) for one in dialled) else ""


def _interface_line(rank: RankFacts) -> str | None:
    if rank.hello is None:
        return None
    names = [
        f"{name}={rank.hello.environment[name]}"
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
        if name in rank.hello.environment
    ]
    return f"rank {rank.rank} on {rank.host}: {', '.join(names) or 'GLOO_SOCKET_IFNAME is not set'}"
