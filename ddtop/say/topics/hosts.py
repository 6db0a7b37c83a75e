"""What is said of hosts that are lost, and of ranks that cannot reach the ranks of other hosts."""

from __future__ import annotations

from ddtop.diagnosis.rendezvous import INIT
from ddtop.diagnosis.rules.hosts import Lost, NotReturned, PartedHosts, dials, waited_s
from ddtop.model.errors import remote_in
from ddtop.model.facts import HostSeen, RankFacts, Snapshot
from ddtop.say.said import (
    INFO,
    WARNING,
    Context,
    Finding,
    Said,
    Writer,
    duration,
    lasting,
    lasts_text,
    spot_text,
    stacks,
)
from ddtop.say.topics.rendezvous import path_lines
from ddtop.say.waiters import waits_clause
from ddtop.words.sentences import clipped, quoted, ranks_text, tensor_text, verb

HOSTS_NAMED = 4


def lost(finding: Finding, seen: Lost, at: Context) -> Said:
    """Which hosts are lost, and who waits for their ranks."""
    hosts, ranks, snapshot = seen.hosts, finding.ranks, at.last_known
    it, its = verb(hosts, "it", "them"), verb(hosts, "its", "their")
    named = [host.host for host, _ in hosts[:HOSTS_NAMED]]
    more = f" and {len(hosts) - HOSTS_NAMED} more" if len(hosts) > HOSTS_NAMED else ""
    name = f"{verb(hosts, 'host', 'hosts')} {', '.join(named)}{more} ({ranks_text(ranks)})"
    age = lasts_text(at, min(host.heard_unix_ns for host, _ in hosts))
    evidence = _evidence(seen, snapshot)
    if finding.severity == INFO:
        return Said(
            f"only ddtop's connection to {name} has been cut{age}: collectives with {its}"
            " ranks still complete, and the job continues",
            evidence,
            "nothing to fix in the job; ddtop cannot see these ranks until the connection is back:"
            " check the network and firewalls between that host and the hub",
        )
    calm = f"no rank waits for {it} yet" if finding.severity == WARNING else ""
    then = (
        waits_clause(snapshot, seen.first, ranks, finding.victims, it)
        if seen.first is not None
        else calm or "no other rank makes progress"
    )
    return Said(
        f"{name} {verb(hosts, 'has', 'have')} not reported{age}; {then}",
        evidence,
        f"check that {it} {verb(hosts, 'is', 'are')} up and reachable: ping"
        f" {' '.join(map(quoted, named))}; then check power, link and scheduler state",
    )


def _evidence(seen: Lost, snapshot: Snapshot) -> tuple[str, ...]:
    lines = [
        _last_text(rank, host, snapshot.time_unix_ns)
        for host, ranks in seen.hosts[:HOSTS_NAMED]
        for rank in ranks[:2]
    ]
    answering = sum(not host.quiet for host in snapshot.seen)
    lines.append(f"{answering} of {len(snapshot.seen)} hosts answer, including the hub")
    if seen.first is not None:
        waiter = snapshot.rank(seen.first.waiters[0])
        lines.append(spot_text(waiter.reported.place, f"rank {waiter.rank} waits at ", ""))
    return tuple(filter(None, lines))


def _last_text(rank: RankFacts, host: HostSeen, now_unix_ns: int) -> str:
    """What the rank did in its last report; empty if nothing is known."""
    comm, iteration = rank.comm, rank.progress.iteration
    done = next((group for group in comm.groups if group.last_op), None)
    parts = (
        f"iteration {iteration:,}" if iteration is not None else "",
        f"{tensor_text(comm.collective)} #{comm.collective.seq}"
        if comm.collective is not None
        else f"after {done.last_op} #{done.enqueued - (done.p2p_offset or 0)}"
        if done is not None
        else "",
        spot_text(rank.reported.place, "", ""),
    )
    ago = duration((now_unix_ns - (rank.agent.heard_unix_ns or host.heard_unix_ns)) / 1e9)
    head = f"rank {rank.rank} on {host.host}, last report {ago} ago: "
    return f"{head}{', '.join(filter(None, parts))}" if any(parts) else ""


# -- Ranks that cannot reach each other


_ADVICE = (
    "name the interface that the hosts share: GLOO_SOCKET_IFNAME (gloo), NCCL_SOCKET_IFNAME"
    " (NCCL); ip -br addr lists them; if it is right, check for a firewall between these hosts"
)
_AGAIN = (
    "start the job again by hand: ranks of a restarted job may connect to addresses of the previous"
    " attempt"
)
_BRIDGES = ("172.17.", "192.168.122.")
"""Addresses of docker0 and virbr0, which exist on every host separately."""


def apart(finding: Finding, seen: PartedHosts, at: Context) -> Said:
    """Which ranks cannot reach which addresses."""
    callers, snapshot = tuple(rank.rank for rank in seen.ranks), at.snapshot
    advice = f"{_AGAIN}; {_ADVICE}" if snapshot.attempt else _ADVICE
    if not seen.joining.inside:
        texts = [rank.reported.exception.text for rank in seen.ranks if rank.reported.exception]
        remotes = sorted({remote for text in texts if (remote := remote_in(text))})
        where = f" at {', '.join(remotes[:4])}" if remotes else ""
        return Said(
            f"{ranks_text(callers)} reached the store, but not the others{where}"
            f"{_kind_of(remotes, snapshot)}, and gave up in {INIT}",
            tuple(
                f"rank {rank} raised {clipped(text, 160)}"
                for rank, text in zip(callers[:4], texts, strict=False)
            ),
            advice,
        )
    dialled = sorted({dial for rank in seen.ranks for dial in dials(rank)})
    whose = f"{ranks_text(finding.ranks)} at " if finding.ranks else ""
    waited = lasting(max(waited_s(snapshot, rank) for rank in seen.ranks))
    lines = [
        f"rank {rank.rank} on {rank.host} tries to connect to {', '.join(dials(rank))} and gets no"
        " answer"
        for rank in seen.ranks[:6]
    ]
    found = map(snapshot.rank, finding.ranks[:4])
    return Said(
        f"{ranks_text(callers)} {verb(callers, 'has', 'have')} reached the store, but not {whose}"
        f"{', '.join(dialled[:4])}{_kind_of(dialled, snapshot)}, in {INIT}{waited}",
        (*lines, *filter(None, map(_interface_line, found))),
        advice,
    )


def _kind_of(dialled: list[str], snapshot: Snapshot) -> str:
    bridge = any(address.startswith(_BRIDGES) for address in dialled)
    if not any(address.startswith("127.") for address in dialled):
        return " (a container bridge)" if bridge else ""
    several = len({rank.host for rank in snapshot.ranks if rank.host}) > 1
    return " (loopback: each host reaches only itself)" if several else ""


def _interface_line(rank: RankFacts) -> str:
    if rank.hello is None:
        return ""
    names = [
        f"{name}={rank.hello.environment[name]}"
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
        if name in rank.hello.environment
    ]
    return f"rank {rank.rank} on {rank.host}: {', '.join(names) or 'GLOO_SOCKET_IFNAME is not set'}"


def not_returned(finding: Finding, seen: NotReturned, at: Context) -> Said:
    """That all are inside, and that nobody knows why it does not return."""
    inside, snapshot = seen.joining.inside, at.snapshot
    waited = lasting(min(waited_s(snapshot, rank) for rank in inside))
    evidence = [f"all {snapshot.world_size} ranks are inside, the last one{waited}"]
    advice = (
        f"see which call they are in: {stacks(finding, at)} --native; name the interface that the"
        " hosts share: GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME"
    )
    if snapshot.attempt:
        evidence.append(
            f"attempt {snapshot.attempt} of this job: the store may still hold keys of the"
            " previous attempt"
        )
        advice = f"{_AGAIN}; {advice}"
    return Said(
        f"{ranks_text(seen.joining.victims)} have all been in {INIT}{waited}; no rank is"
        " missing, and none makes progress",
        (*evidence, *path_lines(inside[:4])),
        advice,
    )


WRITERS: dict[type, Writer] = {PartedHosts: apart, Lost: lost, NotReturned: not_returned}
