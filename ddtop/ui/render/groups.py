"""Process groups as rows, and one group as a page."""

from __future__ import annotations

from ddtop.model.state.facts import Snapshot
from ddtop.present.glyphs import STATE_STYLES, UNICODE, Glyphs
from ddtop.present.groups import (
    GroupFacts,
    group_facts,
    group_waits,
    label_of,
    member_classes,
    members_text,
)
from ddtop.present.table.columns import state_text
from ddtop.present.table.layout import Field, Table, table_for
from ddtop.present.text import Line, Span, clean
from ddtop.ui.render.page import Page
from ddtop.viewer.thresholds import chosen
from ddtop.words import units
from ddtop.words.ranks import rank_list, ranks_text

RANGES_MOST = 4
FIELDS = (
    Field("group", "GROUP", 10, grows=1, most=24),
    Field("backend", "BACKEND", 7, rank=3),
    Field("ranks", "RANKS", 9, grows=1, most=28),
    Field("front", "FRONT", 7, right=True),
    Field("behind", "BEHIND", 20, grows=3, most=44),
    Field("op", "OP", 10, grows=6, rank=2),
)


def groups_table(width: int) -> Table[Field]:
    """The columns of the groups for that width."""
    return table_for(FIELDS, width)


def group_row(
    snapshot: Snapshot, found: GroupFacts, table: Table[Field], glyphs: Glyphs = UNICODE
) -> Line:
    """One group; a culprit and a mismatch are marked by a glyph, not by colour alone."""
    cells: dict[str, Span] = {
        "group": (label_of(found.group), "bold" if found.wait else ""),
        "backend": (clean(found.group.backend), "dim"),
        "ranks": (members_text(found.group, RANGES_MOST), "dim"),
        "front": (units.count(found.front), ""),
        "behind": _behind(snapshot, found),
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


def group_lines(snapshot: Snapshot, name: str, width: int, glyphs: Glyphs = UNICODE) -> list[Line]:
    """The page of one group: what it is, which members are behind, and the members by what they do,
    those furthest behind first."""
    page = Page(width, glyphs)
    group = snapshot.group(name)
    if group is None:
        page.text(f"the group {clean(name)} is not there any more", "dim")
        return page.lines
    found = group_facts(snapshot, group, group_waits(snapshot, chosen()).get(name))
    page.add(
        (label_of(group), "title"),
        (f"  {clean(group.backend)}  {units.plural(len(group.ranks), 'member')}", ""),
    )
    page.item("ranks", members_text(group, 16))
    page.item("store", clean(group.foreign or ""))
    page.item("torch's name", clean(group.name))
    page.item(
        "front",
        "-"
        if found.front is None
        else f"collective #{found.front:,} is the last that was enqueued",
    )
    page.item("behind", "nobody" if found.wait is None else _behind(snapshot, found)[0])
    if found.mismatch:
        page.text(
            "members are in different calls at the same number:",
            "critical",
            f"  {glyphs.critical} ",
        )
        for op, ranks in found.ops:
            page.text(f"{op}: {ranks_text(ranks, 8)}", "", f"    {glyphs.bullet} ")
    page.heading("members")
    _members(page, snapshot, found, glyphs)
    return page.lines


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
    for one in member_classes(snapshot, found.group):
        age = (
            None
            if one.since_unix_ns is None
            else (snapshot.time_unix_ns - one.since_unix_ns) / units.SECOND_NS
        )
        cells: dict[str, Span] = {
            "ranks": (rank_list(one.ranks, 5), ""),
            "state": (state_text(one.state, glyphs), STATE_STYLES[one.state]),
            "in": (units.count(one.enqueued), ""),
            "back": (units.count(one.completed), ""),
            "since": (units.age(age), ""),
            "op": (one.op or "-", "" if one.open else "dim"),
        }
        page.add(("  ", ""), *table.line(cells, glyphs.ellipsis))
