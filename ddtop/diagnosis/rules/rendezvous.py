"""`duplicate-rank`, `rendezvous-mismatch`, `stale-store`, `master-unreachable`: the ranks are alive
but do not find each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ddtop.diagnosis.finding import CRITICAL, Context, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.diagnosis.rendezvous import (
    INIT,
    LOOPBACK,
    WHY_NOT,
    Joining,
    could_not_connect,
    entered_unix_ns,
    has_entered,
    joining_of,
    path_line,
    place_of,
    port_was_taken,
    store_of,
    store_text,
)
from ddtop.model.facts import RankFacts, Snapshot, State
from ddtop.policy import Policy, Waits
from ddtop.say.places import where_text
from ddtop.wire.records import Hello, Rendezvous
from ddtop.words.sentences import by_value, clipped, quoted, ranks_text, verb
from ddtop.words.units import duration


@dataclass(frozen=True)
class RendezvousLimits(Waits, of="rendezvous", was=""):
    """`duplicate-rank`, `rendezvous-mismatch`, `stale-store`, `master-unreachable`."""

    store_clock_s: float = 2.0
    """File servers' clocks differ. A job's store is not older than its first process by more."""


def rule(context: Context) -> list[Finding]:
    """At most one finding. The checks are in the order of cause and effect."""
    snapshot, policy = context.snapshot, context.policy
    if below := _child_findings(snapshot, policy):
        return below
    joining = joining_of(snapshot)
    if joining is None:
        return []
    if (
        joining.waited_s < policy.wait_s(RendezvousLimits)
        and not joining.gave_up
        and not any(rank.claimants.exits for rank in snapshot.ranks)
    ):
        return []
    return (
        _duplicate(snapshot, joining)
        or _stale_findings(snapshot, joining, policy)
        or _mismatch(snapshot, joining)
        or _unreachable_findings(snapshot, joining)
    )


def _finding(
    kind: Kind,
    ranks: tuple[int, ...],
    joining: Joining,
    summary: str,
    evidence: list[str],
    advice: str,
) -> Finding:
    return Finding(
        kind=kind,
        severity=CRITICAL,
        ranks=ranks,
        victims=joining.waiting_without(ranks),
        since_unix_ns=joining.since_unix_ns,
        summary=summary,
        evidence=tuple(evidence),
        advice=advice,
    )


# -- two processes, one number


def _duplicate(snapshot: Snapshot, joining: Joining) -> list[Finding]:
    twice = [rank for rank in snapshot.ranks if _rivals(rank) or _dead_rivals(rank)]
    if not twice:
        return []
    ranks = tuple(rank.rank for rank in twice)
    missing = tuple(rank.rank for rank in snapshot.ranks if rank.state is State.MISSING)
    lead = twice[0]
    pids = [lead.pid, *_rivals(lead), *_dead_rivals(lead)]
    gone = len(_dead_rivals(lead)) + lead.gone
    summary = (
        f"{len(pids)} processes claim rank {lead.rank} (pids"
        f" {', '.join(str(pid) for pid in pids[:8])}"
    )
    summary += f", {gone} of them {verb(gone, 'has', 'have')} ended)" if gone else ")"
    if len(ranks) > 1:
        summary += f", and the same goes for {ranks_text(ranks[1:])}"
    if missing:
        summary += f", and no process claims {ranks_text(missing)}"
    summary += f"; {joining.wait_text}, {duration(joining.waited_s)} so far"
    lines = [line for rank in twice[:4] for line in _claims(rank)]
    if all(rank.hello is not None and rank.hello.claim == "init" for rank in twice):
        advice = "give each process its own number in init_process_group(rank=...)"
    else:
        advice = (
            "set a different RANK on each process; two nested launchers (srun and torchrun) also"
            " cause this"
        )
    return [_finding(Kind.DUPLICATE_RANK, ranks, joining, summary, lines, advice)]


def _rivals(rank: RankFacts) -> list[int]:
    hello = rank.hello
    return [
        claimant.pid
        for claimant in rank.claimants.hellos
        if hello is not None and _are_two(hello, claimant)
    ]


def _dead_rivals(rank: RankFacts) -> list[int]:
    return [exit_.pid for exit_ in rank.claimants.exits if exit_.code or exit_.signal]


def _are_two(hello: Hello, other: Hello) -> bool:
    """Whether these are two ranks. A program that starts the real rank and waits for it is not a
    rank itself.
    """
    if hello.launcher_pid == other.pid or other.launcher_pid == hello.pid:
        return False
    return hello.claim == other.claim or (
        hello.init_unix_ns is not None and other.init_unix_ns is not None
    )


def _claims(rank: RankFacts) -> list[str]:
    hellos = [hello for hello in (rank.hello, *rank.claimants.hellos) if hello is not None]
    lines = [
        f"pid {hello.pid} on {hello.host}: rank {hello.rank} of {hello.world_size}, "
        f"{'RANK in its environment' if hello.claim == 'env' else 'argument of init_process_group'}"
        f", started by pid {hello.launcher_pid}"
        for hello in hellos[:4]
    ]
    lines += [
        f"pid {exit_.pid}: ended with {'signal' if exit_.signal else 'exit code'}"
        f" {exit_.signal or exit_.code}"
        + (
            f", {exit_.exception.type}: {clipped(exit_.exception.text, 100)}"
            if exit_.exception is not None
            else ""
        )
        for exit_ in rank.claimants.exits[:2]
    ]
    return lines


def _child_findings(snapshot: Snapshot, policy: Policy) -> list[Finding]:
    """A child of a rank that joins the group of the job once more, under the number of its parent.

    It waits there for ranks that have met long ago, or is let in (gloo). Its parent mostly waits
    for it.
    """
    stood_unix_ns = snapshot.time_unix_ns - int(policy.wait_s(RendezvousLimits) * 1e9)
    inside = {
        process.pid
        for host in snapshot.hosts
        for process in host.processes
        if process.init_since_unix_ns and process.init_since_unix_ns < stood_unix_ns
    }
    for rank in snapshot.ranks if snapshot.ended is None else ():
        for child in rank.claimants.hellos:
            since = child.init_unix_ns
            if not _is_twin(rank.hello, child) or since is None or since > stood_unix_ns:
                continue
            waits = [wait for wait in snapshot.waits if rank.rank in wait.behind]
            stands = any(wait.since_unix_ns < stood_unix_ns for wait in waits)
            if child.pid in inside or (child.joined and stands):
                victims = tuple(sorted({wait.rank for wait in waits}))
                return [_below_finding(snapshot, rank, child, since, victims)]
    return []


def _is_twin(hello: Hello | None, child: Hello) -> bool:
    if hello is None or not hello.joined or child.above != hello.pid:
        return False
    return (place_of(child), child.world_size) == (place_of(hello), hello.world_size)


def _below_finding(
    snapshot: Snapshot,
    rank: RankFacts,
    child: Hello,
    since: int,
    victims: tuple[int, ...],
) -> Finding:
    waited = duration((snapshot.time_unix_ns - since) / 1e9)
    joins = (
        f"joined this job's group with the same number {waited} ago"
        if child.joined
        else f"has been in this job's {INIT} for {waited}"
    )
    summary = (
        f"2 processes claim rank {rank.rank} (pids {rank.pid}, {child.pid}): pid {child.pid},"
        f" started by rank {rank.rank}, {joins}; rank {rank.rank} is {where_text(rank)}"
    )
    if victims:
        summary += f"; {ranks_text(victims)} {verb(victims, 'waits', 'wait')} for rank {rank.rank}"
    return Finding(
        kind=Kind.DUPLICATE_RANK,
        severity=CRITICAL,
        ranks=(rank.rank,),
        victims=victims,
        since_unix_ns=since,
        summary=summary,
        evidence=tuple(_claims(rank)),
        advice=(
            "start the child without the launcher's variables (RANK, WORLD_SIZE, MASTER_ADDR,"
            " MASTER_PORT, TORCHELASTIC_*), or let it create its own group on another port"
        ),
    )


# -- an old file


def _stale_findings(snapshot: Snapshot, joining: Joining, policy: Policy) -> list[Finding]:
    used = [
        (rank, rank.hello.store_file)
        for rank in snapshot.ranks
        if rank.hello is not None and rank.hello.store_file
    ]
    if not used:
        return []
    ranks = tuple(rank.rank for rank, _ in used)
    began = min(rank.hello.started_unix_ns for rank in snapshot.ranks if rank.hello is not None)
    before = began - int(policy.of(RendezvousLimits).store_clock_s * 1e9)
    old = [
        file
        for _, file in used
        if file.bytes and file.modified_unix_ns and file.modified_unix_ns < before
    ]
    if old:
        file = min(old, key=lambda store_file: store_file.modified_unix_ns or 0)
        age = duration((began - (file.modified_unix_ns or 0)) / 1e9)
        summary = (
            f"the file store {file.path} is older than this job: {file.bytes:,} bytes, last written"
            f" {age} before it began; {ranks_text(ranks)} {verb(ranks, 'looks', 'look')} for"
            " processes of an earlier run"
        )
        if file.owner:
            summary += f" by {file.owner}"
        lines = [f"rank {rank.rank} found {one.bytes or 0:,} bytes there" for rank, one in used[:4]]
        return [
            _finding(
                Kind.STALE_STORE,
                ranks,
                joining,
                summary,
                lines + _ends(joining),
                f"remove it and start again: rm {file.path}",
            )
        ]
    barred = [
        (rank, file) for rank, file in used if file.wrong is not None or file.writable is False
    ]
    if not barred:
        return []
    ranks, file = tuple(rank.rank for rank, _ in barred), barred[0][1]
    why = (
        file.wrong
        or f"not writable for this user{f', owned by {file.owner}' if file.owner else ''}"
    )
    summary = f"{ranks_text(ranks)} cannot use the file store {file.path}: {why}"
    return [
        _finding(
            Kind.STALE_STORE,
            ranks,
            joining,
            summary,
            _ends(joining),
            "use a path that all ranks can write: init_method=file:///PATH",
        )
    ]


def _ends(joining: Joining) -> list[str]:
    return [
        f"rank {rank.rank} raised {exception.type}: {clipped(exception.text, 120)}"
        for rank in joining.gave_up[:4]
        if (exception := rank.reported.exception) is not None
    ]


# -- different places, sizes, backends


def _mismatch(snapshot: Snapshot, joining: Joining) -> list[Finding]:
    ranks = [rank for rank in (*joining.inside, *joining.gave_up) if rank.hello is not None]
    seen = [rank for rank in snapshot.ranks if rank.hello is not None]
    words = joining.words
    labels = {"WORLD_SIZE": words.size, "store": words.address, "backend": "backend"}
    for name, values in (
        (
            "WORLD_SIZE",
            {
                rank.rank: str(rank.hello.world_size)
                for rank in seen
                if rank.hello and rank.hello.world_size
            },
        ),
        ("store", _stores(ranks)),
        (
            "backend",
            {rank.rank: rank.hello.backend for rank in ranks if rank.hello and rank.hello.backend},
        ),
    ):
        counts = Counter(values.values())
        if len(counts) < 2 or (name == "backend" and _have_common_name(list(counts))):
            continue
        odd = _minority(
            values, counts, len(seen) if name == "WORLD_SIZE" else None, name == "store"
        )
        parts = ", ".join(
            f"{ranks_text(theirs)}: {one}" for one, theirs in by_value(values).items()
        )
        summary = (
            f"{labels[name]} differs between ranks ({parts}); {joining.wait_text},"
            f" {duration(joining.waited_s)} so far"
        )
        lines = [line for rank in ranks[:6] if (line := path_line(rank)) is not None]
        advice = f"give all ranks the same {labels[name]}"
        return [
            _finding(
                Kind.RENDEZVOUS_MISMATCH, odd, joining, summary, lines + _ends(joining), advice
            )
        ]
    return []


def _stores(ranks: list[RankFacts]) -> dict[int, str]:
    """The store that each rank connects to. Several names of one host count as one, and so do two
    names that both lead to this host.
    """
    found = {rank.rank: text for rank in ranks if (text := store_text(rank)) is not None}
    ports = {place[1] for rank in ranks if (place := store_of(rank)) is not None}
    if len(ports) == 1 and len(found) == sum(store_of(rank) is not None for rank in ranks):
        port = next(iter(ports))
        for rank in ranks:
            way, place = rank.comm.rendezvous, store_of(rank)
            reached = way is not None and "ESTABLISHED" in (way.sockets or ())
            if place is not None and (
                reached or place[0] in LOOPBACK or (way is not None and way.local)
            ):
                found[rank.rank] = f"this host:{port}"
        # Without data from outside, names cannot be compared.
        if any(rank.comm.rendezvous is None for rank in ranks):
            return {}
        if set(found.values()) - {f"this host:{port}"} and len(set(found.values())) > 1:
            return {rank.rank: store_text(rank) or "" for rank in ranks}
    return found


def _have_common_name(values: list[str]) -> bool:
    words = [{part.rpartition(":")[2] for part in value.lower().split(",")} for value in values]
    return bool(set.intersection(*words))


def _minority(
    values: Mapping[int, str], counts: Counter[str], processes: int | None, of_rank_0: bool
) -> tuple[int, ...]:
    """The ranks at fault.

    If there are two equal halves: the half that the number of processes disproves, or the half
    without rank 0, which creates the store. Otherwise all.
    """
    (first, most), (_, second) = counts.most_common(2)
    if most > second:
        right: str | None = first
    elif processes is not None and str(processes) in counts:
        right = str(processes)
    else:
        right = values.get(0) if of_rank_0 else None
    return tuple(sorted(rank for rank, value in values.items() if value != right))


# -- nobody there, or a stranger


def _unreachable_findings(snapshot: Snapshot, joining: Joining) -> list[Finding]:
    ways = [
        (rank, rank.comm.rendezvous) for rank in joining.inside if rank.comm.rendezvous is not None
    ]
    taken = [rank for rank in joining.gave_up if port_was_taken(rank)]
    strange = [(rank, way) for rank, way in ways if _is_stranger(rank, way, bool(taken))]
    if strange or taken:
        return [_stranger(joining, taken, strange)]
    # Rank 0 creates the store: before it has started, the others cannot connect.
    may_exist = has_entered(snapshot.rank(0))
    cut = [
        (rank, way)
        for rank, way in ways
        if _cannot_reach_store(way) and (may_exist or way.probe != "refused")
    ]
    thrown = [
        rank
        for rank in joining.gave_up
        if could_not_connect(rank) and (may_exist or rank.rank == 0)
    ]
    if not cut and not (thrown and not joining.inside):
        return []
    lead = cut[0][0] if cut else thrown[0]
    ranks = tuple(sorted(rank.rank for rank in [rank for rank, _ in cut] or thrown))
    store, probe = store_text(lead) or "the store", cut[0][1].probe if cut else None
    why = WHY_NOT.get(probe or "", probe or "")
    if cut and _leads_elsewhere(cut[0][1]):
        why += (
            f"{', and ' if why else ''}rank 0 listens on this host, which has a different address"
        )
    waited = duration(
        (snapshot.time_unix_ns - (entered_unix_ns(lead) or joining.since_unix_ns)) / 1e9
    )
    summary = f"{ranks_text(ranks)} cannot reach the store at {store}" + (
        f" ({why})" if why else ""
    )
    summary += f", in {INIT} for {waited}" if cut else f" and gave up in {INIT}"
    lines = [line for rank, _ in cut[:6] if (line := path_line(rank)) is not None]
    advice = _ADVICE.get(
        probe or "", "check MASTER_ADDR and MASTER_PORT, and that rank 0 is running"
    ).format(store=quoted(store))
    return [
        _finding(Kind.MASTER_UNREACHABLE, ranks, joining, summary, lines + _ends(joining), advice)
    ]


_ADVICE = {
    "open": "set MASTER_ADDR to rank 0's host: whatever answers there is not a torch store",
    "refused": (
        "start rank 0 there, or set MASTER_ADDR and MASTER_PORT to where it listens (ss -ltn on"
        " that host); under torchrun leave address and port to the launcher"
    ),
    "timed out": "check MASTER_ADDR, and the firewall between the hosts: nc -zv {store}",
    "name not found": "set MASTER_ADDR to a name or number of rank 0's host: getent hosts NAME",
    "unreachable": "check MASTER_ADDR and the routes: ip route get ADDRESS",
}


def _is_stranger(rank: RankFacts, way: Rendezvous, taken: bool) -> bool:
    held = way.listener_pid is not None or way.listener_user is not None
    if (
        way.local is False
        or not held
        or way.listener_ours
        or (way.listener_ours is None and not taken)
    ):
        return False
    # Several launchers of one job on one host: the store belongs to one of the others.
    nodes = rank.hello.environment.get("GROUP_WORLD_SIZE", "1") if rank.hello is not None else "1"
    command = way.listener_command or ""
    return nodes == "1" or not ("torchrun" in command or "torch.distributed" in command)


def _stranger(
    joining: Joining, taken: list[RankFacts], strange: list[tuple[RankFacts, Rendezvous]]
) -> Finding:
    # Rank 0 could not get the port: the other ranks find another program there.
    there = {store_of(rank) for rank in taken}
    found = {rank.rank for rank in (*taken, *joining.inside) if store_of(rank) in there} | {
        rank.rank for rank, _ in strange
    }
    ranks = tuple(sorted(found))
    way = strange[0][1] if strange else None
    store = store_text(strange[0][0] if strange else taken[0]) or "the store's port"
    if way is None:
        holder = "another process"
    elif way.listener_pid is None:
        holder = f"a process of {way.listener_user}"
    else:
        started = way.listener_started_unix_ns
        age = (
            f", started {duration((joining.since_unix_ns - started) / 1e9)} earlier"
            if started and started < joining.since_unix_ns
            else ""
        )
        holder = f"pid {way.listener_pid} ({way.listener_command or '?'}{age})"
    summary = f"{store} is held by {holder}, which does not belong to this job"
    if taken:
        summary = f"{ranks_text([rank.rank for rank in taken])} could not listen: {summary}"
    if strange:
        talks = [rank.rank for rank, _ in strange]
        summary += (
            f"; {ranks_text(talks)} {verb(talks, 'is', 'are')} connected to it in {INIT},"
            f" {duration(joining.waited_s)} so far"
        )
    lines = [line for rank, _ in strange[:6] if (line := path_line(rank)) is not None]
    end = (
        f"end it (kill {way.listener_pid}) or "
        if way is not None and way.listener_pid is not None
        else ""
    )
    advice = f"{end}choose another MASTER_PORT; torchrun --standalone finds a free port by itself"
    return _finding(
        Kind.MASTER_UNREACHABLE, ranks, joining, summary, lines + _ends(joining), advice
    )


def _cannot_reach_store(way: Rendezvous) -> bool:
    if way.sockets is None or "ESTABLISHED" in way.sockets or (way.local and way.listener_ours):
        return False
    if way.probe == "open":
        return _leads_elsewhere(way) or "CLOSE_WAIT" in way.sockets
    return way.probe is not None


def _leads_elsewhere(way: Rendezvous) -> bool:
    """Whether the store is on this host, but the address is not."""
    return way.local is False and way.listener_ours is True
