"""The progress of each process group, the ranks that are behind, and the calls of its members.

A large job has thousands of groups, for example one for each eight ranks. So an overview reads only
the open waits, and the members are read only for the groups on the screen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from ddtop.model.facts import Parting, Snapshot, State
from ddtop.model.wait_graph import comparable_seq
from ddtop.policy import Policy
from ddtop.present.numbers import state_text
from ddtop.present.text import (
    STATE_STYLES,
    UNICODE,
    Field,
    Glyphs,
    Line,
    Page,
    Span,
    Table,
    clean,
    clip_line,
    table_for,
)
from ddtop.thresholds import chosen
from ddtop.wire.records import CallSite, Collective, Group, bytes_of
from ddtop.words import units
from ddtop.words.sentences import (
    group_name,
    made_text,
    names_of_groups,
    op_name,
    rank_list,
    ranks_text,
)

# -- The data of a collective: its tensors and their bytes


def what_moves(collective: Collective) -> str:
    """Sizes, data types and bytes of a collective's input: `[1024, 1024] float32, 4.0 MiB`."""
    shapes = " ".join(f"[{', '.join(map(str, sizes))}]" for sizes in collective.sizes[:3])
    if len(collective.sizes) > 3:
        shapes += f" and {len(collective.sizes) - 3} more"
    words = " ".join(part for part in (shapes, types_text(collective)) if part)
    number = bytes_of(collective.sizes, collective.dtypes)
    return words if number is None else f"{words}, {units.long_size(number)}"


def op_with_bytes(collective: Collective) -> str:
    """`all_reduce 4.0 MiB float32`, as much of it as is known."""
    number = bytes_of(collective.sizes, collective.dtypes)
    parts = (
        clean(op_name(collective.op)) or "collective",
        "" if number is None else units.long_size(number),
        types_text(collective),
    )
    return " ".join(part for part in parts if part)


def types_text(collective: Collective) -> str:
    """The data types, each once."""
    return ", ".join(dict.fromkeys(clean(name.lower()) for name in collective.dtypes))


# -- The list of process groups, and the page of one


SECOND_NS = 1_000_000_000
_Moving = tuple[str, tuple[tuple[int, ...], ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class GroupWait:
    """Ranks wait in one group."""

    since_unix_ns: int
    #: The members that they wait for. Empty: every member is there, and nothing completes.
    behind: frozenset[int]
    waiting: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class MemberClass:
    """Members of a group that are in the same state at the same collective."""

    ranks: tuple[int, ...]
    state: State
    #: Number of the last collective that they have enqueued; None where not known.
    enqueued: int | None
    #: Number of the last one that has completed; None where not known.
    completed: int | None
    #: The collective that is open, else the last one.
    op: str
    open: bool
    #: Since when a collective has been pending, on the member that has waited longest.
    since_unix_ns: int | None


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """One group, as a row shows it."""

    group: Group
    #: The last collective that any member has enqueued.
    front: int | None
    #: The members that others wait for: the last collective that they have enqueued, and their
    #: ranks.
    lag: tuple[tuple[int | None, tuple[int, ...]], ...]
    wait: GroupWait | None
    #: The calls with the oldest open number, and the ranks in each. Two different calls are a
    #: mismatch.
    ops: tuple[tuple[str, tuple[int, ...]], ...]
    last_op: str

    @property
    def mismatch(self) -> bool:
        """Members are in different calls at the same number."""
        return len(self.ops) > 1


def label_of(group: Group) -> str:
    """As the program uses it (`tp`), else torch's description of it, else its name."""
    return clean(group_name(group))


def members_text(group: Group, most: int = 0) -> str:
    """`0-7`, `0-56/8` for every eighth rank, or that its members are not ranks of this job."""
    ranks = group.ranks
    step = ranks[1] - ranks[0] if len(ranks) > 2 else 1
    if step > 1 and ranks == tuple(range(ranks[0], ranks[-1] + 1, step)):
        return f"{ranks[0]}-{ranks[-1]}/{step}"
    return rank_list(ranks, most) if group.foreign is None else "not of this job"


def group_waits(snapshot: Snapshot, policy: Policy) -> dict[str, GroupWait]:
    """The groups in which a rank waits for longer than in a normal step, by name, from one pass
    over the waits."""
    newest = snapshot.time_unix_ns - int(policy.wait_shown_s * SECOND_NS)
    since: dict[str, int] = {}
    behind: dict[str, dict[int, tuple[int, ...]]] = {}
    waiting: dict[str, set[int]] = {}
    for wait in snapshot.waits:
        if wait.since_unix_ns <= newest:
            since[wait.group] = min(since.get(wait.group, wait.since_unix_ns), wait.since_unix_ns)
            waiting.setdefault(wait.group, set()).add(wait.rank)
            # Once for each collective: thousands of waiters in the same one wait for the same
            # ranks.
            behind.setdefault(wait.group, {}).setdefault(wait.seq, wait.behind)
    return {
        name: GroupWait(
            at,
            frozenset(rank for ranks in behind[name].values() for rank in ranks),
            frozenset(waiting[name]),
        )
        for name, at in since.items()
    }


def order_of(
    snapshot: Snapshot,
    waits: dict[str, GroupWait],
    by_name: Iterable[str],
    policy: Policy,
    at_fault: Collection[int] = (),
) -> list[str]:
    """Groups without progress first: those that wait for a rank at fault, then those with the
    longest wait; then all others by name."""
    limit = snapshot.time_unix_ns - int(policy.group_stuck_s * SECOND_NS)
    stuck = sorted(
        (group_wait.behind.isdisjoint(at_fault), group_wait.since_unix_ns // SECOND_NS, name)
        for name, group_wait in waits.items()
        if group_wait.since_unix_ns <= limit
    )
    first = [name for _, _, name in stuck]
    known = set(first)
    return [*first, *(name for name in by_name if name not in known)]


def chain_line(
    snapshot: Snapshot,
    waits: dict[str, GroupWait],
    at_fault: Collection[int],
    width: int,
    glyphs: Glyphs = UNICODE,
) -> Line:
    """Who holds up whom: `✖ rank 26 → dp_2, tp_3 → dp_0 (via 24), dp_1 (via 25)`.

    Behind the first arrow are the groups that wait for the ranks at fault, behind the next one
    those that wait for ranks that wait in these. Empty while nobody at fault is waited for.
    """
    names, most = names_of_groups(snapshot.groups), max(width // CHAIN_COLUMNS, 2)
    begun = snapshot.time_unix_ns - int(chosen().group_stuck_s * SECOND_NS)
    left = {name: wait for name, wait in waits.items() if wait.since_unix_ns <= begun}
    held = frozenset(at_fault)
    roots = held.intersection(rank for wait in left.values() for rank in wait.behind)
    spans: list[Span] = [(f"{glyphs.critical} {ranks_text(roots, 2)}", "critical")]
    while found := {name: via for name, wait in left.items() if (via := wait.behind & held)}:
        texts = [
            clean(names[name]) + (f" (via {rank_list(found[name], 1)})" if spans[1:] else "")
            for name in sorted(found, key=lambda name: natural(names[name]))[:most]
        ]
        more = f" and {len(found) - most:,} more" if len(found) > most else ""
        spans += [(f" {glyphs.arrow} ", "dim"), (", ".join(texts) + more, "")]
        held = frozenset().union(*[left.pop(name).waiting for name in found])
    return clip_line(tuple(spans), width, glyphs.ellipsis) if roots else ()


def natural(text: str) -> tuple[object, ...]:
    """A key under which `dp_2` comes before `dp_10`."""
    parts = re.split(r"(\d+)", text)
    return tuple((1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts)


def group_facts(snapshot: Snapshot, group: Group, wait: GroupWait | None) -> GroupFacts:
    """The facts of one group, from one look at each member."""
    reached: dict[int | None, list[int]] = {}
    held: dict[int, dict[_Moving, list[int]]] = {}
    last_op = ""
    name, ranks = group.name, snapshot.ranks
    for number in group.ranks:
        if number >= len(ranks):
            continue
        rank, seq = ranks[number], None
        for progress in rank.comm.groups:
            if progress.group == name:
                seq = comparable_seq(progress)
                last_op = last_op or progress.last_op or ""
                break
        reached.setdefault(seq, []).append(number)
        for collective in rank.comm.open_collectives:
            if collective.group == name:
                held.setdefault(collective.seq, {}).setdefault(
                    (collective.op, collective.sizes, collective.dtypes), []
                ).append(number)
    front = max((seq for seq in reached if seq is not None), default=None)
    # Texts are made once for all members in the same call: to make them for each of ten thousand
    # members would be the largest cost.
    first = held[min(held)] if held else {}
    ops: dict[str, list[int]] = {}
    for (op, sizes, dtypes), who in first.items():
        ops.setdefault(op_with_bytes(Collective(name, op, 0, 0, sizes, dtypes)), []).extend(who)
    lag = tuple(
        (seq, tuple(reached[seq]))
        for seq in sorted(reached, key=lambda seq: -1 if seq is None else seq)
        if seq != front and wait is not None and not wait.behind.isdisjoint(reached[seq])
    )
    found = tuple((op, tuple(sorted(who))) for op, who in ops.items())
    return GroupFacts(group, front, lag, wait, found, clean(op_name(last_op)))


def member_classes(snapshot: Snapshot, group: Group) -> tuple[MemberClass, ...]:
    """The members grouped by their state, those that are furthest behind first."""
    found: dict[tuple[State, int | None, int | None, str, bool], list[int]] = {}
    since: dict[tuple[State, int | None, int | None, str, bool], int] = {}
    for number in group.ranks:
        rank = snapshot.rank(number)
        progress = next((each for each in rank.comm.groups if each.group == group.name), None)
        held = next(
            (
                collective
                for collective in rank.comm.open_collectives
                if collective.group == group.name
            ),
            None,
        )
        enqueued = comparable_seq(progress) if progress is not None else None
        behind = (progress.p2p_offset or 0) if progress is not None else 0
        back = (
            None if progress is None or progress.completed is None else progress.completed - behind
        )
        op = (
            op_with_bytes(held)
            if held is not None
            else clean(op_name((progress.last_op if progress else "") or ""))
        )
        key = (rank.state, enqueued, back, op, held is not None)
        found.setdefault(key, []).append(number)
        at = progress.pending_since_unix_ns if progress is not None else None
        if at is not None:
            since[key] = min(since.get(key, at), at)
    classes = [MemberClass(tuple(ranks), *key, since.get(key)) for key, ranks in found.items()]
    return tuple(
        sorted(
            classes,
            key=lambda member_class: (
                member_class.enqueued is not None,
                member_class.enqueued or 0,
                member_class.ranks,
            ),
        )
    )


# -- Process groups as rows, and one group as a page


RANGES_MOST = 4
CHAIN_COLUMNS = 24
"""Of this many columns one is used to name a group of the chain: a step of it names few."""
FIELDS = (
    Field("group", "GROUP", 10, grows=1, most=24),
    Field("backend", "BACKEND", 7, rank=3),
    Field("ranks", "RANKS", 9, grows=1, most=28, rank=1),
    Field("front", "FRONT", 7, right=True, rank=1),
    Field("behind", "BEHIND", 20, grows=3, most=44),
    Field("waiting", "WAITING", 9, right=True, grows=3, rank=4, most=15),
    Field("op", "OP", 10, grows=6, rank=2),
)


def groups_table(width: int) -> Table[Field]:
    """The columns of the groups for that width."""
    return table_for(FIELDS, width)


def group_row(
    snapshot: Snapshot, found: GroupFacts, table: Table[Field], glyphs: Glyphs = UNICODE
) -> Line:
    """One group; a culprit and a mismatch are marked by a glyph, not by colour alone."""
    waiting = found.wait.waiting if found.wait is not None else ()
    cells: dict[str, Span] = {
        "group": (label_of(found.group), "bold" if found.wait else ""),
        "backend": (clean(found.group.backend), "dim"),
        "ranks": (members_text(found.group, RANGES_MOST), "dim"),
        "front": (units.count(found.front), ""),
        "behind": _behind(snapshot, found),
        "waiting": (f"{len(waiting):,} of {len(found.group.ranks):,}" if waiting else "-", "dim"),
        "op": _op(found, glyphs),
    }
    return table.line(cells, glyphs.ellipsis)


def _behind(snapshot: Snapshot, found: GroupFacts) -> Span:
    if found.wait is None:
        return "-", "dim"
    for_s = units.duration((snapshot.time_unix_ns - found.wait.since_unix_ns) / units.SECOND_NS)
    if found.lag:
        parts = []
        for seq, ranks in found.lag[:2]:
            at = "nothing enqueued" if seq is None else f"at {seq:,}"
            parts.append(f"{rank_list(ranks, 2)} {at}")
        more = f", {len(found.lag) - 2} more" if len(found.lag) > 2 else ""
        return f"{'; '.join(parts)}{more} ({for_s})", "warning"
    if found.wait.behind:
        return f"{ranks_text(found.wait.behind, 2)} ({for_s})", "warning"
    stands = "nothing completes" if found.group.foreign is None else "outside this job"
    return f"{stands} ({for_s})", "warning"


def _op(found: GroupFacts, glyphs: Glyphs) -> Span:
    if found.mismatch:
        parts = [f"{op} [{rank_list(ranks, 2)}]" for op, ranks in found.ops]
        return f"{glyphs.critical} {' against '.join(parts)}", "critical"
    if found.ops:
        return found.ops[0][0], ""
    return found.last_op or "idle", "dim"


Source = Callable[[CallSite, int], list[Line]]


def group_lines(
    snapshot: Snapshot,
    name: str,
    width: int,
    glyphs: Glyphs = UNICODE,
    source: Source | None = None,
) -> list[Line]:
    """The page of one group: what it is, which members are behind, where their calls have parted,
    and the members by what they do, those furthest behind first. `source`: the lines around a
    call, in so many columns."""
    page = Page(width, glyphs)
    group = snapshot.group(name)
    if group is None:
        page.text(f"the group {clean(name)} no longer exists", "dim")
        return page.lines
    found = group_facts(snapshot, group, group_waits(snapshot, chosen()).get(name))
    page.add(
        (label_of(group), "title"),
        (f"  {clean(group.backend)}  {units.plural(len(group.ranks), 'member')}", ""),
    )
    page.items(
        ("ranks", members_text(group, 16)),
        ("store", clean(group.foreign or "")),
        ("torch's name", clean(group.name)),
        (
            "front",
            "-" if found.front is None else f"collective #{found.front:,} is the last one enqueued",
        ),
        ("behind", "nobody" if found.wait is None else _behind(snapshot, found)[0]),
    )
    if found.mismatch:
        page.text(
            "members are in different calls at the same number:",
            "critical",
            f"  {glyphs.critical} ",
        )
        for op, ranks in found.ops:
            page.text(f"{op}: {ranks_text(ranks, 8)}", "", f"    {glyphs.bullet} ")
    for parting in snapshot.partings:
        if parting.group == name:
            _first_difference(page, parting, source)
    page.heading("members")
    _members(page, snapshot, found, glyphs)
    return page.lines


def _first_difference(page: Page, parting: Parting, source: Source | None) -> None:
    page.heading(f"first difference: {parting.spot}")
    made, instead = parting.made, parting.instead
    for ranks, site, other in ((parting.ranks, made, instead), (parting.others, instead, made)):
        text = f"{ranks_text(ranks, 8)} {made_text(site, other)}"
        page.text(text, "", f"    {page.glyphs.bullet} ")
        page.lines += source(site, page.width) if source is not None and site.file else []


_MEMBER_FIELDS = (
    Field("ranks", "RANKS", 12, grows=3, most=32),
    Field("state", "STATE", 11),
    Field("in", "ENQUEUED", 8, right=True),
    Field("back", "COMPLETED", 9, right=True, rank=1),
    Field("since", "OPEN", 5, right=True),
    Field("op", "OP", 14, grows=4),
)


def _members(page: Page, snapshot: Snapshot, found: GroupFacts, glyphs: Glyphs) -> None:
    table = table_for(_MEMBER_FIELDS, page.width - 2)
    page.add(("  ", ""), *table.titles())
    for member_class in member_classes(snapshot, found.group):
        age = (
            None
            if member_class.since_unix_ns is None
            else (snapshot.time_unix_ns - member_class.since_unix_ns) / units.SECOND_NS
        )
        cells: dict[str, Span] = {
            "ranks": (rank_list(member_class.ranks, 5), ""),
            "state": (state_text(member_class.state, glyphs), STATE_STYLES[member_class.state]),
            "in": (units.count(member_class.enqueued), ""),
            "back": (units.count(member_class.completed), ""),
            "since": (units.age(age), ""),
            "op": (member_class.op or "-", "" if member_class.open else "dim"),
        }
        page.add(("  ", ""), *table.line(cells, glyphs.ellipsis))


# -- A whole job as text: its groups by name, its hosts, its backend


def group_label(snapshot: Snapshot, name: str) -> str:
    """The group as a finding's sentence names it."""
    return clean(names_of_groups(snapshot.groups).of(name))


def hosts_answering(snapshot: Snapshot) -> tuple[int, int]:
    """How many hosts report, and how many the job is on.

    A host whose ranks have all ended counts in neither.
    """
    quiet = {host.sender for host in snapshot.seen if host.quiet}
    missed = (
        {rank.agent.sender for rank in snapshot.ranks if rank.process.exit is None} & quiet
        if quiet
        else quiet
    )
    return len(snapshot.seen) - len(quiet), len(snapshot.seen) - len(quiet) + len(missed)


def hosts_of(snapshot: Snapshot) -> int:
    """How many hosts the job is known to be on."""
    return len(snapshot.hosts) or len({rank.host for rank in snapshot.ranks if rank.host})


def backend_of(snapshot: Snapshot) -> str | None:
    """The backend of the widest group, else what the first rank announced."""
    if snapshot.groups:
        return clean(max(snapshot.groups, key=lambda group: len(group.ranks)).backend) or None
    names = (rank.hello.backend for rank in snapshot.ranks if rank.hello and rank.hello.backend)
    return next(map(clean, names), None)


def starting(snapshot: Snapshot) -> bool:
    """Whether all ranks are still starting."""
    early = (State.STARTING, State.JOINING, State.MISSING, State.CULPRIT, State.WARNING)
    return snapshot.iteration is None and all(
        rank.state in early and rank.reported.phase in ("starting", "joining")
        for rank in snapshot.ranks
    )
