"""`duplicate-rank`, `rendezvous-mismatch`, `stale-store`, `master-unreachable`: the ranks are alive
but do not find each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ddtop.diagnosis.rendezvous import (
    LOOPBACK,
    Joining,
    has_entered,
    joining_of,
    place_of,
    says,
    store_of,
)
from ddtop.diagnosis.rule import (
    CRITICAL,
    Context,
    Explanation,
    Finding,
    Kind,
    Policy,
    RuleRow,
    Waits,
)
from ddtop.model.errors import Says
from ddtop.model.facts import RankFacts, Snapshot
from ddtop.wire.records import Hello, Rendezvous, StoreFile


@dataclass(frozen=True)
class RendezvousLimits(Waits, of="rendezvous"):
    """`duplicate-rank`, `rendezvous-mismatch`, `stale-store`, `master-unreachable`."""

    store_clock_s: float = 2.0
    """File servers' clocks differ. A job's store is not older than its first process by more."""


class Stale(NamedTuple):
    """The file of a store: it is older than the job, which began then; or it cannot be used."""

    joining: Joining
    file: StoreFile
    began_unix_ns: int | None = None


class Differing(NamedTuple):
    """What each rank has: of WORLD_SIZE, store or backend."""

    joining: Joining
    name: str
    values: Mapping[int, object]


Ways = Sequence[tuple[RankFacts, Rendezvous]]
"""Ranks inside, and their ways to the store."""


class CutOff(NamedTuple):
    """The ways that lead to no store, else the ranks that gave up; `lead` is the first of them."""

    joining: Joining
    lead: RankFacts
    ways: Ways


class Held(NamedTuple):
    """The store's port is that of a stranger: the ranks that could not listen there, and the ways
    that lead to it."""

    joining: Joining
    taken: Sequence[RankFacts]
    ways: Ways


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


def _finding(kind: Kind, ranks: Sequence[int], joining: Joining, seen: object) -> list[Finding]:
    """One finding. `ranks`: those at fault."""
    without, since = joining.waiting_without(ranks), joining.since_unix_ns
    return [Finding(kind, CRITICAL, tuple(ranks), without, since, seen=seen)]


# -- two processes, one number


def _duplicate(snapshot: Snapshot, joining: Joining) -> list[Finding]:
    ranks = [rank.rank for rank in snapshot.ranks if rivals(rank)]
    return _finding(Kind.DUPLICATE_RANK, ranks, joining, joining) if ranks else []


def rivals(rank: RankFacts) -> list[int]:
    """The pids of other processes with its number, those that failed last."""
    hello = rank.hello
    alive = [
        claimant.pid
        for claimant in rank.claimants.hellos
        if hello is not None and _are_two(hello, claimant)
    ]
    return [*alive, *dead_rivals(rank)]


def dead_rivals(rank: RankFacts) -> list[int]:
    """The pids of those that failed."""
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
                kind = Kind.DUPLICATE_RANK
                return [Finding(kind, CRITICAL, (rank.rank,), victims, since, seen=child)]
    return []


def _is_twin(hello: Hello | None, child: Hello) -> bool:
    if hello is None or not hello.joined or child.above != hello.pid:
        return False
    return (place_of(child), child.world_size) == (place_of(hello), hello.world_size)


# -- an old file


def _stale_findings(snapshot: Snapshot, joining: Joining, policy: Policy) -> list[Finding]:
    hellos = {rank.rank: rank.hello for rank in snapshot.ranks if rank.hello is not None}
    used = {rank: hello.store_file for rank, hello in hellos.items() if hello.store_file}
    if not used:
        return []
    began = min(hello.started_unix_ns for hello in hellos.values())
    before = began - int(policy.of(RendezvousLimits).store_clock_s * 1e9)
    old = [
        file
        for file in used.values()
        if file.bytes and file.modified_unix_ns and file.modified_unix_ns < before
    ]
    if old:
        file = min(old, key=lambda store_file: store_file.modified_unix_ns or 0)
        return _finding(Kind.STALE_STORE, [*used], joining, Stale(joining, file, began))
    barred = {
        rank: file
        for rank, file in used.items()
        if file.wrong is not None or file.writable is False
    }
    seen = [Stale(joining, file) for file in barred.values()]
    return _finding(Kind.STALE_STORE, [*barred], joining, seen[0]) if seen else []


# -- different places, sizes, backends


def _mismatch(snapshot: Snapshot, joining: Joining) -> list[Finding]:
    seen = {rank.rank: rank.hello for rank in snapshot.ranks if rank.hello is not None}
    ranks = [rank for rank in (*joining.inside, *joining.gave_up) if rank.rank in seen]
    sizes = {rank: hello.world_size for rank, hello in seen.items() if hello.world_size}
    backends = {rank.rank: backend for rank in ranks if (backend := seen[rank.rank].backend)}
    rows: tuple[tuple[str, Mapping[int, object]], ...] = (
        ("WORLD_SIZE", sizes),
        ("store", _stores(ranks)),
        ("backend", backends),
    )
    for name, values in rows:
        counts = Counter(values.values())
        if len(counts) < 2 or (name == "backend" and _have_common_name([*backends.values()])):
            continue
        size = len(seen) if name == "WORLD_SIZE" else None
        odd = _minority(values, counts, size, name == "store")
        return _finding(Kind.RENDEZVOUS_MISMATCH, odd, joining, Differing(joining, name, values))
    return []


def _stores(ranks: list[RankFacts]) -> dict[int, object]:
    """The store that each rank connects to. Several names of one host count as one, and so do two
    names that both lead to this host.
    """
    given = {
        rank.rank: place
        for rank in ranks
        if rank.hello is not None and (place := place_of(rank.hello)) is not None
    }
    found: dict[int, object] = dict(given)
    ports = {place[1] if isinstance(place, tuple) else None for place in given.values()}
    if len(ports) == 1 and None not in ports:
        here = ("this host", *ports)
        for rank in ranks:
            way, place = rank.comm.rendezvous, store_of(rank)
            reached = way is not None and "ESTABLISHED" in (way.sockets or ())
            if place is not None and (
                reached or place[0] in LOOPBACK or (way is not None and way.local)
            ):
                found[rank.rank] = here
        # Without data from outside, names cannot be compared.
        if any(rank.comm.rendezvous is None for rank in ranks):
            return {}
        if set(found.values()) - {here} and len(set(found.values())) > 1:
            return {rank.rank: given.get(rank.rank, "") for rank in ranks}
    return found


def _have_common_name(values: list[str]) -> bool:
    words = [{part.rpartition(":")[2] for part in value.lower().split(",")} for value in values]
    return bool(set.intersection(*words))


def _minority(
    values: Mapping[int, object], counts: Counter[object], processes: int | None, of_rank_0: bool
) -> tuple[int, ...]:
    """The ranks at fault.

    If there are two equal halves: the half that the number of processes disproves, or the half
    without rank 0, which creates the store. Otherwise all.
    """
    (first, most), (_, second) = counts.most_common(2)
    if most > second:
        right: object = first
    elif processes is not None and processes in counts:
        right = processes
    else:
        right = values.get(0) if of_rank_0 else None
    return tuple(sorted(rank for rank, value in values.items() if value != right))


# -- nobody there, or a stranger


def _unreachable_findings(snapshot: Snapshot, joining: Joining) -> list[Finding]:
    ways = [
        (rank, rank.comm.rendezvous) for rank in joining.inside if rank.comm.rendezvous is not None
    ]
    taken = [rank for rank in joining.gave_up if says(rank, Says.PORT_TAKEN)]
    strange = [(rank, way) for rank, way in ways if _is_stranger(rank, way, bool(taken))]
    if strange or taken:
        # Rank 0 could not get the port: the other ranks find another program there.
        there = {store_of(rank) for rank in taken}
        found = {rank.rank for rank in (*taken, *joining.inside) if store_of(rank) in there}
        ranks = sorted(found | {rank.rank for rank, _ in strange})
        return _finding(Kind.MASTER_UNREACHABLE, ranks, joining, Held(joining, taken, strange))
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
        if says(rank, Says.NO_STORE) and (may_exist or rank.rank == 0)
    ]
    if not cut and not (thrown and not joining.inside):
        return []
    failed = [rank for rank, _ in cut] or thrown
    ranks = sorted(rank.rank for rank in failed)
    return _finding(Kind.MASTER_UNREACHABLE, ranks, joining, CutOff(joining, failed[0], cut))


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


def _cannot_reach_store(way: Rendezvous) -> bool:
    if way.sockets is None or "ESTABLISHED" in way.sockets or (way.local and way.listener_ours):
        return False
    if way.probe == "open":
        return leads_elsewhere(way) or "CLOSE_WAIT" in way.sockets
    return way.probe is not None


def leads_elsewhere(way: Rendezvous) -> bool:
    """Whether the store is on this host, but the address is not."""
    return way.local is False and way.listener_ours is True


ROWS = (
    RuleRow(
        rule,
        (Kind.DUPLICATE_RANK, Kind.STALE_STORE, Kind.RENDEZVOUS_MISMATCH, Kind.MASTER_UNREACHABLE),
        "what each rank passes to init_process_group, and the sockets of its process",
    ),
)
PAGES = (
    Explanation(
        kind=Kind.MASTER_UNREACHABLE,
        severity="critical",
        brief="ranks cannot reach the store at MASTER_ADDR",
        meaning=(
            "Rank 0 (or torchrun) opens a store at MASTER_ADDR:MASTER_PORT, and all ranks connect"
            " to it. The ranks named here have no connection to it, or another program holds the"
            " port and they are connected to that program."
        ),
        found=(
            (
                "ddtop reads the sockets of each rank inside init_process_group, and sees which"
                " process of the host listens on that port. The relay also tries to connect, and"
                " notes the result: refused, timed out, no such name, or open."
            ),
            (
                "This must last for {rendezvous.wait_s}, or rank 0 must have found its port in use."
                " If the connection is refused because rank 0 has not started yet, the finding is"
                " rank-missing or late-to-init."
            ),
            (
                "If a torchrun has no ranks yet, and its stack shows that it is connecting to the"
                " store, it is a warning after {starting.init_late_warning_s}, and critical after"
                " {starting.store_dial_critical_s}."
            ),
        ),
        steps=(
            (
                "See which address the ranks use:\nddtop attach JOB, Enter on a rank: MASTER_ADDR,"
                " MASTER_PORT"
            ),
            (
                "Refused: rank 0 listens on another address or port, or has ended.\nss -tlnp |"
                " grep PORT    (on rank 0's host)"
            ),
            (
                "Timed out: the address or port is wrong, or there is a firewall between the"
                " hosts.\nnc -zv ADDR PORT"
            ),
            "No such name: use a name that all hosts can resolve.\ngetent hosts NAME",
            (
                "Another program uses the port: end it, or choose another port. torchrun"
                " --standalone finds a free one."
            ),
            (
                "Do not use localhost as the address of a job on several hosts. On each host it"
                " means that host itself."
            ),
        ),
    ),
    Explanation(
        kind=Kind.DUPLICATE_RANK,
        severity="critical",
        brief="two processes claim the same rank",
        meaning=(
            "Two processes have the same RANK. The group counts only one of them and waits for a"
            " rank number that nobody has, or the second rank 0 fails because the first one uses"
            " the port."
        ),
        found=(
            (
                "Both processes have reported the same rank, and neither is the parent of the "
                "other. The finding appears after {rendezvous.wait_s} in init_process_group, or as "
                "soon as one of them has failed."
            ),
            (
                "Or a child of a rank has been in the job's init_process_group, with the rank's "
                "number, for {rendezvous.wait_s}. A child that makes a group of its own is not a "
                "rank, and is not judged."
            ),
        ),
        steps=(
            (
                "The evidence lists both pids and their parents:\nps -o pid,ppid,lstart,args -p"
                " PID1,PID2"
            ),
            "srun with torchrun: start one task per node (--ntasks-per-node=1).",
            "srun alone: take RANK from SLURM_PROCID and LOCAL_RANK from SLURM_LOCALID.",
            "Started by hand: set a different RANK in each shell.",
        ),
        before=("dist.init_process_group('gloo', rank=0, world_size=2)    # in both",),
        after=("dist.init_process_group('gloo')       # RANK as the launcher sets it",),
    ),
    Explanation(
        kind=Kind.RENDEZVOUS_MISMATCH,
        severity="critical",
        brief="ranks disagree about WORLD_SIZE, store or backend",
        meaning=(
            "To find each other, all ranks need the same WORLD_SIZE, the same MASTER_ADDR and"
            " MASTER_PORT (or init_method) and the same backend. The ranks named here have other"
            " values than most ranks."
        ),
        found=(
            (
                "ddtop compares the environment and arguments of all ranks once a rank has been in"
                " init_process_group for {rendezvous.wait_s}. Different names of one host count as"
                " equal; so do cpu:gloo and gloo."
            ),
            (
                "If the ranks split into two equal halves, the half without rank 0 is at fault,"
                " because rank 0 creates the store."
            ),
        ),
        steps=(
            "The evidence shows the address that each rank uses, and which process listens there.",
            (
                "Set the variables once, in one place for all ranks. If the port is random, let"
                " one rank choose it and send it to all."
            ),
            "torchrun sets all of this by itself.",
        ),
        before=("os.environ['MASTER_PORT'] = str(free_port())    # on every rank",),
        after=("port = os.environ['MASTER_PORT']       # set once, where all are started",),
    ),
    Explanation(
        kind=Kind.STALE_STORE,
        severity="critical",
        brief="the file:// store is old or cannot be used",
        meaning=(
            "With init_method=file://PATH the ranks exchange their addresses in a file. A file"
            " from an earlier run holds the addresses of processes that have ended. Some ranks"
            " then fail with a refused connection, and others wait."
        ),
        found=(
            (
                "Each rank records the file's size, age and owner just before init_process_group."
                " The file is stale if it was not empty, it was older than the job's first"
                " process, and the ranks fail or have not joined for {rendezvous.wait_s}."
            ),
            "If the ranks cannot write to the path, the finding is the same.",
        ),
        steps=(
            "Remove the file and start again:\nrm PATH",
            "Give each run its own file, on a disk that all hosts share.",
            "Remove the file before the ranks start, not in the program itself.",
        ),
        before=("init_method='file:///data/store'",),
        after=("init_method=f'file:///data/store-{os.environ[\"SLURM_JOB_ID\"]}'",),
    ),
)
