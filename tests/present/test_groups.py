"""Process groups: how far they are, which ranks are behind, and which groups come first."""

import msgspec

from ddtop.model.facts import Wait
from ddtop.policy import POLICY
from ddtop.present.groups import (
    chain_line,
    group_facts,
    group_lines,
    group_row,
    group_waits,
    groups_table,
    label_of,
    member_classes,
    members_text,
    natural,
    order_of,
)
from ddtop.present.text import UNICODE, line_width, plain
from ddtop.wire.records import Group, GroupProgress
from tests.ui import builders
from tests.ui.builders import NOW, SECOND
from tests.ui.changed import replace


def many(world_size=64, culprit=13):
    """A hang in default_pg, and tensor-parallel groups of four without any wait."""
    snapshot, verdict = builders.hang(world_size, culprit)
    parts = [
        Group(str(at + 1), f"tp_{at}", tuple(range(at * 4, at * 4 + 4)), "nccl")
        for at in range(world_size // 4)
    ]
    return replace(snapshot, groups=(*snapshot.groups, *parts)), verdict


def row(snapshot, name, width=110):
    found = group_facts(snapshot, snapshot.group(name), group_waits(snapshot, POLICY).get(name))
    return plain(group_row(snapshot, found, groups_table(width)))


def mismatched():
    """Ranks 4-7 are in a broadcast with the same number as the others' reduce."""
    snapshot, _ = builders.hang()
    ranks = []
    for rank in snapshot.ranks:
        calls = tuple(
            msgspec.structs.replace(one, op="gloo:broadcast", sizes=())
            for one in rank.comm.open_collectives
        )
        ranks.append(replace(rank, comm={"open_collectives": calls}) if rank.rank >= 4 else rank)
    return replace(snapshot, ranks=tuple(ranks))


def test_a_row_tells_the_front_who_is_behind_since_when_and_in_what():
    assert " ".join(row(builders.hang()[0], "0", 120).split()) == (
        "default_pg gloo 0-7 74,893 5 at 74,892 (31 s) 7 of 8 all_reduce 4.0 MiB float32"
    )


def test_a_training_in_its_rhythm_has_nobody_behind():
    snapshot, _ = builders.hang()
    fresh = tuple(replace(wait, since_unix_ns=NOW - SECOND) for wait in snapshot.waits)

    assert group_waits(replace(snapshot, waits=fresh), POLICY) == {}
    assert " - " in row(replace(snapshot, waits=fresh), "0")


def test_where_all_are_there_and_nothing_comes_back_that_is_reported():
    snapshot, _ = builders.hang()
    waits = tuple(replace(wait, behind=()) for wait in snapshot.waits)

    assert "nothing completes (31 s)" in row(replace(snapshot, waits=waits), "0", 140)


def test_a_member_that_is_gone_is_behind_whatever_it_had_enqueued():
    snapshot, _ = builders.hang()
    ahead = replace(snapshot.ranks[5], comm={"groups": (GroupProgress("0", 74_893, 74_892),)})
    ranks = (*snapshot.ranks[:5], ahead, *snapshot.ranks[6:])

    assert "rank 5 (31 s)" in row(replace(snapshot, ranks=ranks), "0")


def test_members_in_different_calls_at_one_number_are_a_mismatch_and_marked_without_colour():
    snapshot = mismatched()
    found = group_facts(snapshot, snapshot.group("0"), group_waits(snapshot, POLICY).get("0"))

    assert found.mismatch
    assert "✖ all_reduce 4.0 MiB float32 [0-3] against broadcast" in row(snapshot, "0", 200)


def test_what_makes_no_progress_comes_first_then_the_names_as_people_count():
    snapshot, _ = many()
    names = [
        group.name for group in sorted(snapshot.groups, key=lambda group: natural(label_of(group)))
    ]
    order = order_of(snapshot, group_waits(snapshot, POLICY), names, POLICY)

    assert [label_of(snapshot.group(name)) for name in order[:4]] == [
        "default_pg",
        "tp_0",
        "tp_1",
        "tp_2",
    ]
    assert label_of(snapshot.group(order[-1])) == "tp_15"
    waits = tuple(replace(wait, group="12") for wait in snapshot.waits)
    assert (
        order_of(snapshot, group_waits(replace(snapshot, waits=waits), POLICY), names, POLICY)[0]
        == "12"
    )


def test_of_several_that_make_no_progress_the_one_that_waits_for_the_rank_at_fault_comes_first():
    snapshot, _ = many()
    longer = replace(snapshot.waits[0], group="12", since_unix_ns=NOW - 60 * SECOND, behind=(44,))
    waits = group_waits(replace(snapshot, waits=(*snapshot.waits, longer)), POLICY)

    assert order_of(snapshot, waits, (), POLICY)[0] == "12"
    assert order_of(snapshot, waits, (), POLICY, (13,))[0] == "0"


def crossed():
    """Sixteen ranks in rows of four (tp) and columns of four (dp). Rank 5 is in no collective: its
    row and its column wait for it, and the other columns for the rest of its row.
    """
    snapshot, _ = builders.hang(16, 5)
    rows = [tuple(range(at, at + 4)) for at in range(0, 16, 4)]
    columns = [tuple(range(at, 16, 4)) for at in range(4)]
    parts = {f"tp_{at}": ranks for at, ranks in enumerate(rows)}
    parts |= {f"dp_{at}": ranks for at, ranks in enumerate(columns)}
    groups = tuple(Group(f"g{name}", name, ranks, "nccl") for name, ranks in parts.items())
    behind = {"tp_1": 5, "dp_0": 4, "dp_1": 5, "dp_2": 6, "dp_3": 7}
    waits = tuple(
        Wait(rank, f"g{name}", 9, NOW - 30 * SECOND, (last,))
        for name, last in behind.items()
        for rank in parts[name]
        if rank != last
    )
    return replace(snapshot, groups=groups, waits=waits)


def chain(snapshot, at_fault=(5,), width=120):
    return plain(chain_line(snapshot, group_waits(snapshot, POLICY), at_fault, width))


def test_the_chain_of_a_hang_says_who_holds_up_whom():
    assert chain(crossed()) == ("✖ rank 5 → dp_1, tp_1 → dp_0 (via 4), dp_2 (via 6), dp_3 (via 7)")
    assert (
        chain(crossed(), width=60) == "✖ rank 5 → dp_1, tp_1 → dp_0 (via 4), dp_2 (via 6) and 1 mo…"
    )


def test_there_is_no_chain_where_nobody_at_fault_is_waited_for_or_only_for_a_moment():
    snapshot = crossed()
    fresh = tuple(
        msgspec.structs.replace(wait, since_unix_ns=NOW - 2 * SECOND) for wait in snapshot.waits
    )

    assert chain(snapshot, (0,)) == ""
    assert chain(replace(snapshot, waits=fresh)) == ""


def test_ranks_at_one_distance_are_written_as_a_stride():
    names = {label_of(group): members_text(group, 4) for group in crossed().groups}

    assert names["dp_1"] == "1-13/4"
    assert names["tp_1"] == "4-7"
    assert members_text(Group("", "odd", (0, 2, 3, 7), "nccl")) == "0,2,3,7"


def test_a_wide_row_says_how_many_members_wait_and_a_narrow_one_still_who_is_behind():
    snapshot = crossed()

    assert " 3 of 4  " in row(snapshot, "gdp_1", 130)
    assert "rank 5 (30 s)" in row(snapshot, "gdp_1", 40)


def test_the_page_of_a_group_has_its_members_by_what_they_do_the_last_first():
    snapshot, _ = builders.hang()
    lines = [plain(line) for line in group_lines(snapshot, "0", 110)]
    at = next(number for number, line in enumerate(lines) if line.startswith("  RANKS"))

    assert lines[0] == "default_pg  gloo  8 members"
    assert lines[at + 1].split() == ["5", "✖", "culprit", "74,892", "74,892", "-", "all_reduce"]
    assert " ".join(lines[at + 2].split()) == (
        "0-4,6,7 ■ blocked 74,893 74,892 31s all_reduce 4.0 MiB float32"
    )
    assert len(member_classes(snapshot, snapshot.group("0"))) == 2


def test_the_page_of_a_group_with_a_mismatch_says_who_is_in_which_call():
    text = "\n".join(plain(line) for line in group_lines(mismatched(), "0", 90))

    assert "members are in different calls at the same number:" in text
    assert "broadcast float32: ranks 4,6,7" in text


def test_a_group_that_went_has_a_page_that_says_so():
    assert plain(group_lines(builders.healthy(), "7", 60)[0]) == "the group 7 no longer exists"


def test_no_row_is_wider_than_its_table():
    snapshot, _ = many()
    for width in range(72, 220, 7):
        table = groups_table(width)
        for name in ("0", "3"):
            found = group_facts(
                snapshot, snapshot.group(name), group_waits(snapshot, POLICY).get(name)
            )
            assert line_width(group_row(snapshot, found, table, UNICODE)) <= width
