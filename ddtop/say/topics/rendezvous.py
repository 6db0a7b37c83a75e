"""What is said of ranks that do not find each other: two with one number, different stores, a store
that is old, held by a stranger or out of reach.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ddtop.diagnosis.rendezvous import INIT, Joining, entered_unix_ns, store_of
from ddtop.diagnosis.rules import rendezvous
from ddtop.model.facts import RankFacts, State
from ddtop.say.places import where_text
from ddtop.say.said import Context, Finding, Said, Writer, age_text, duration, lasts_text
from ddtop.wire.records import Hello
from ddtop.words.sentences import by_value, clipped, quoted, ranks_text, verb


class Words(NamedTuple):
    """What the call and the things around it are called where the ranks start."""

    size: str = "WORLD_SIZE"
    number: str = "RANK"
    address: str = "MASTER_ADDR:MASTER_PORT (or init_method)"
    store: str = "store"


_OF_JAX = Words("num_processes", "process_id", "coordinator_address", "coordinator")
WHY_NOT = {
    "open": "whatever answers there closes the connection",
    "refused": "connection refused, nothing listens there",
    "timed out": "no answer: packets are dropped, or no host has the address",
    "name not found": "no such host name",
    "unreachable": "no route to that host",
}
"""Why a store cannot be reached, by the result of a connection to it."""
_REACH_IT = {
    "open": "set MASTER_ADDR to rank 0's host: whatever answers there is not a torch store",
    "refused": (
        "start rank 0 there, or set MASTER_ADDR and MASTER_PORT to where it listens"
        "; under torchrun leave address and port to the launcher"
    ),
    "timed out": "check MASTER_ADDR, and the firewall between the hosts: nc -zv {store}",
    "name not found": "set MASTER_ADDR to a name or number of rank 0's host: getent hosts NAME",
    "unreachable": "check MASTER_ADDR and the routes: ip route get ADDRESS",
}


# -- Who waits where


def words_of(joining: Joining) -> Words:
    """Those of JAX, or of torch."""
    return _OF_JAX if joining.of_jax else Words()


def wait_text(joining: Joining) -> str:
    """`ranks 0-2 wait in init_process_group (store node0:29500)`."""
    inside = tuple(rank.rank for rank in joining.inside) or joining.victims
    does = verb(inside, "waits", "wait") if joining.inside else "gave up"
    stores = filter(None, map(store_text, (*joining.inside, *joining.gave_up)))
    where = next((f" ({words_of(joining).store} {store})" for store in stores), "")
    return f"{ranks_text(inside)} {does} in {joining.init}{where}"


def so_far(joining: Joining) -> str:
    """`41 s so far`."""
    return f"{duration(joining.waited_s)} so far"


def place_text(place: object) -> str:
    """`node0:29500`, of an address and its port; anything else as it is."""
    return ":".join(map(str, place)) if isinstance(place, tuple) else str(place)


def store_text(rank: RankFacts) -> str | None:
    """`node0:29500`, or the path of a file."""
    file = rank.hello.store_file if rank.hello is not None else None
    found = store_of(rank)
    return place_text(found) if found is not None else file.path if file is not None else None


def path_lines(ranks: Iterable[RankFacts]) -> list[str]:
    """`rank 1 (pid 4801) → 127.0.0.1:29500: no connection, refused; nothing listens there`."""
    return [line for rank in ranks if (line := _path_line(rank))]


def _path_line(rank: RankFacts) -> str:
    way = rank.comm.rendezvous
    if way is None:
        return ""
    held = "unknown" if way.sockets is None else ", ".join(way.sockets) or "no connection"
    tried = f", the relay tried: {way.probe}" if way.probe is not None else ""
    who = (
        f"pid {way.listener_pid} ({way.listener_command or '?'})"
        if way.listener_pid is not None
        else f"a process of {way.listener_user}"
        if way.listener_user is not None
        else "nothing"
        if way.local
        else ""
    )
    listens = f"; {who} listens there" if who else ""
    return f"rank {rank.rank} (pid {way.pid}) → {way.address}:{way.port}: {held}{tried}{listens}"


def _ends(joining: Joining) -> list[str]:
    return [
        f"rank {rank.rank} raised {exception.type}: {clipped(exception.text, 120)}"
        for rank in joining.gave_up[:4]
        if (exception := rank.reported.exception) is not None
    ]


# -- Two processes, one number


def twice(finding: Finding, seen: Joining, at: Context) -> Said:
    """Which processes have one number."""
    ranks = list(map(at.snapshot.rank, finding.ranks))
    lead, dead = ranks[0], rendezvous.dead_rivals(ranks[0])
    pids, gone = [lead.pid, *rendezvous.rivals(lead)], len(dead) + lead.gone
    missing = [rank.rank for rank in at.snapshot.ranks if rank.state is State.MISSING]
    shown = ", ".join(map(str, pids[:8]))
    parts = (
        f"{len(pids)} processes claim rank {lead.rank} (pids {shown}",
        f", {gone} of them {verb(gone, 'has', 'have')} ended)" if gone else ")",
        f", and the same goes for {ranks_text(finding.ranks[1:])}" if len(ranks) > 1 else "",
        f", and no process claims {ranks_text(missing)}" if missing else "",
        f"; {wait_text(seen)}, {so_far(seen)}",
    )
    by_call = all(rank.hello is not None and rank.hello.claim == "init" for rank in ranks)
    return Said(
        "".join(parts),
        tuple(line for rank in ranks[:4] for line in _claims(rank)),
        "give each process its own number in init_process_group(rank=...)"
        if by_call
        else "set a different RANK on each process; two nested launchers (srun and torchrun) also"
        " cause this",
    )


def _claims(rank: RankFacts) -> list[str]:
    hellos = [hello for hello in (rank.hello, *rank.claimants.hellos) if hello is not None]
    lines = [
        f"pid {hello.pid} on {hello.host}: rank {hello.rank} of {hello.world_size}, "
        f"{'RANK in its environment' if hello.claim == 'env' else 'argument of init_process_group'}"
        f", started by pid {hello.launcher_pid}"
        for hello in hellos[:4]
    ]
    return lines + [
        f"pid {exit_.pid}: ended with {'signal' if exit_.signal else 'exit code'}"
        f" {exit_.signal or exit_.code}"
        + (
            f", {exit_.exception.type}: {clipped(exit_.exception.text, 100)}"
            if exit_.exception is not None
            else ""
        )
        for exit_ in rank.claimants.exits[:2]
    ]


def child(finding: Finding, seen: Hello, at: Context) -> Said:
    """What the child of a rank does, and who waits for that rank."""
    pid, rank, victims = seen.pid, at.snapshot.rank(finding.ranks[0]), finding.victims
    began, name = seen.init_unix_ns or 0, f"rank {rank.rank}"
    joins = (
        f"joined this job's group with the same number {age_text(at, began)} ago"
        if seen.joined
        else f"has been in this job's {INIT}{lasts_text(at, began)}"
    )
    waits = f"; {ranks_text(victims)} {verb(victims, 'waits', 'wait')} for {name}"
    return Said(
        f"2 processes claim {name} (pids {rank.pid}, {pid}): pid {pid}, started by {name}, {joins};"
        f" {name} is {where_text(rank)}{waits if victims else ''}",
        tuple(_claims(rank)),
        "start the child without the launcher's variables (RANK, WORLD_SIZE, MASTER_ADDR,"
        " MASTER_PORT, TORCHELASTIC_*), or let it create its own group on another port",
    )


# -- The store: an old file, different ones, a stranger's, out of reach


def stale(finding: Finding, seen: rendezvous.Stale, at: Context) -> Said:
    """What is wrong with the file."""
    ranks, file, ends = finding.ranks, seen.file, _ends(seen.joining)
    if seen.began_unix_ns is None:
        owner = f", owned by {file.owner}" if file.owner else ""
        why = file.wrong or f"not writable for this user{owner}"
        return Said(
            f"{ranks_text(ranks)} cannot use the file store {file.path}: {why}",
            tuple(ends),
            "use a path that all ranks can write: init_method=file:///PATH",
        )
    hellos = ((rank, at.snapshot.rank(rank).hello) for rank in ranks[:4])
    found = ((rank, hello.store_file) for rank, hello in hellos if hello and hello.store_file)
    return Said(
        f"the file store {file.path} is older than this job: {file.bytes:,} bytes, last written"
        f" {duration((seen.began_unix_ns - (file.modified_unix_ns or 0)) / 1e9)} before it began;"
        f" {ranks_text(ranks)} {verb(ranks, 'looks', 'look')} for processes of an earlier run"
        + (f" by {file.owner}" if file.owner else ""),
        (*(f"rank {rank} found {one.bytes or 0:,} bytes there" for rank, one in found), *ends),
        f"remove it and start again: rm {quoted(file.path)}",
    )


def differing(_: Finding, seen: rendezvous.Differing, __: Context) -> Said:
    """Which ranks have which value."""
    joining, words = seen.joining, words_of(seen.joining)
    name = {"WORLD_SIZE": words.size, "store": words.address}.get(seen.name, seen.name)
    values = {rank: place_text(value) for rank, value in seen.values.items()}
    parts = ", ".join(f"{ranks_text(theirs)}: {one}" for one, theirs in by_value(values).items())
    ranks = [rank for rank in (*joining.inside, *joining.gave_up) if rank.hello is not None]
    return Said(
        f"{name} differs between ranks ({parts}); {wait_text(joining)}, {so_far(joining)}",
        (*path_lines(ranks[:6]), *_ends(joining)),
        f"give all ranks the same {name}",
    )


def cut_off(finding: Finding, seen: rendezvous.CutOff, at: Context) -> Said:
    """Why they do not reach the store."""
    store, way = store_text(seen.lead) or "the store", seen.ways[0][1] if seen.ways else None
    probe = (way.probe or "") if way is not None else ""
    reasons = (
        WHY_NOT.get(probe, probe),
        "rank 0 listens on this host, which has a different address"
        if way is not None and rendezvous.leads_elsewhere(way)
        else "",
    )
    why = ", and ".join(filter(None, reasons))
    waited = lasts_text(at, entered_unix_ns(seen.lead) or seen.joining.since_unix_ns)
    advice = "check MASTER_ADDR and MASTER_PORT, and that rank 0 is running"
    return Said(
        f"{ranks_text(finding.ranks)} cannot reach the store at {store}"
        + (f" ({why})" if why else "")
        + (f", in {INIT}{waited}" if seen.ways else f" and gave up in {INIT}"),
        (*path_lines(rank for rank, _ in seen.ways[:6]), *_ends(seen.joining)),
        _REACH_IT.get(probe, advice).format(store=quoted(store)),
    )


def held(_: Finding, seen: rendezvous.Held, __: Context) -> Said:
    """Who has the port."""
    joining, way = seen.joining, seen.ways[0][1] if seen.ways else None
    store = store_text(seen.ways[0][0] if seen.ways else seen.taken[0]) or "the store's port"
    started = (way.listener_started_unix_ns if way is not None else 0) or joining.since_unix_ns
    earlier_s = (joining.since_unix_ns - started) / 1e9
    age = f", started {duration(earlier_s)} earlier" if earlier_s > 0 else ""
    holder, end = "another process", ""
    if way is not None and way.listener_pid is None:
        holder = f"a process of {way.listener_user}"
    elif way is not None:
        holder = f"pid {way.listener_pid} ({way.listener_command or '?'}{age})"
        end = f"end it (kill {way.listener_pid}) or "
    taken, talks = ([rank.rank for rank in seen.taken], [rank.rank for rank, _ in seen.ways])
    connected = f"{ranks_text(talks)} {verb(talks, 'is', 'are')} connected to it in {INIT}"
    return Said(
        (f"{ranks_text(taken)} could not listen: " if taken else "")
        + f"{store} is held by {holder}, which does not belong to this job"
        + (f"; {connected}, {so_far(joining)}" if talks else ""),
        (*path_lines(rank for rank, _ in seen.ways[:6]), *_ends(joining)),
        f"{end}choose another MASTER_PORT; torchrun --standalone finds a free port by itself",
    )


WRITERS: dict[type, Writer] = {
    Hello: child,
    Joining: twice,
    rendezvous.CutOff: cut_off,
    rendezvous.Differing: differing,
    rendezvous.Held: held,
    rendezvous.Stale: stale,
}
