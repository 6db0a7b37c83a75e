"""The map: classes that do not flicker, ways to lay ranks out, and its cells as text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtop.model.facts import State
from ddtop.present.map import (
    AT_FAULT,
    BLOCKED,
    CLASSES,
    CULPRIT,
    FINISHED,
    HEALTHY,
    KILLED,
    EvenGrid,
    HostGrid,
    HostRanks,
    Settled,
    codes_of,
    counts,
    glyph_of,
    grid_for,
    hosts_of_ranks,
    ranks_in,
)
from ddtop.present.text import ASCII, UNICODE, line_width, plain
from ddtop.ui.rows import cursor_line, legend_line, map_line, map_strip
from ddtop.ui.style import PALETTES
from ddtop.wire.records import Exit
from tests.ui import builders
from tests.ui.builders import NOW, SECOND
from tests.ui.changed import replace


def later(snapshot, half_seconds):
    return replace(snapshot, time_unix_ns=NOW + half_seconds * SECOND // 2)


def with_state(snapshot, number, state, gone=None):
    ranks = list(snapshot.ranks)
    ranks[number] = replace(ranks[number], state=state, process={"exit": gone})
    return replace(snapshot, ranks=tuple(ranks))


def test_ranks_that_run_and_that_wait_for_a_moment_look_the_same():
    assert set(codes_of(builders.healthy(8))) == {HEALTHY}


def test_a_rank_at_fault_keeps_what_says_how_it_went():
    snapshot, _ = builders.hang()
    killed = with_state(snapshot, 5, State.KILLED)

    assert codes_of(snapshot, (5,))[5] == CULPRIT + AT_FAULT
    assert codes_of(killed, (5,))[5] == KILLED + AT_FAULT
    assert codes_of(snapshot, (0,))[0] == CULPRIT + AT_FAULT


def test_who_finished_in_good_order_alarms_nobody_and_has_a_sign_of_its_own():
    snapshot = with_state(
        builders.healthy(2), 1, State.EXITED, Exit(1, 4801, 0, None, False, 0, "pidfd")
    )

    assert codes_of(snapshot)[1] == FINISHED
    assert glyph_of(FINISHED, ASCII) == "="


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
def test_no_two_classes_share_a_sign_but_the_two_ways_to_be_gone(glyphs):
    signs = [glyph_of(code, glyphs) for code in range(len(CLASSES))]

    assert len(set(signs)) == len(signs) - 1


def test_what_is_wrong_shows_at_once_and_what_is_well_again_after_two_looks():
    settled, well = Settled(), builders.healthy(4)
    bad = with_state(well, 2, State.BLOCKED)
    shown = [
        settled.take(later(one, at), codes_of(one))[2]
        for at, one in enumerate((well, bad, well, bad, well, well))
    ]

    assert shown == [HEALTHY, BLOCKED, BLOCKED, BLOCKED, BLOCKED, HEALTHY]


def test_another_run_and_another_time_begin_anew():
    settled, well = Settled(), builders.healthy(4)
    bad = with_state(well, 2, State.BLOCKED)
    settled.take(bad, codes_of(bad))

    assert settled.take(later(well, 120), codes_of(well))[2] == HEALTHY
    settled.take(later(bad, 121), codes_of(bad))
    assert settled.take(replace(later(well, 122), attempt=1), codes_of(well))[2] == HEALTHY


def test_counts_put_the_worst_first():
    codes = bytes([HEALTHY, BLOCKED, BLOCKED, KILLED + AT_FAULT])

    assert counts(codes) == [(KILLED, 1), (BLOCKED, 2), (HEALTHY, 1)]
    assert ranks_in(codes, KILLED, 4) == [3]


def hosts(count, each):
    return tuple(
        HostRanks(f"node{at:03d}", tuple(range(at * each, at * each + each))) for at in range(count)
    )


def lines_of(grid, codes, glyphs=UNICODE, picked=None):
    return [plain(map_line(grid, codes, y, picked, glyphs)) for y in range(grid.lines)]


def test_hosts_stand_in_rows_where_they_fit():
    codes = bytearray([HEALTHY]) * 24
    codes[13] = KILLED + AT_FAULT

    assert lines_of(grid_for(hosts(3, 8), 24, 40, 10, True), bytes(codes)) == [
        "node000 ········  node001 ·····✝··",
        "node002 ········",
    ]


def test_a_host_with_more_ranks_than_columns_takes_several_lines():
    grid = grid_for(hosts(1, 40), 40, 30, 10, True)

    assert isinstance(grid, HostGrid)
    assert lines_of(grid, bytes([HEALTHY]) * 40) == ["node000 " + "·" * 22, " " * 8 + "·" * 18]
    assert grid.moved(0, 0, 1) == 22


def test_where_hosts_have_no_room_ranks_stand_in_their_order():
    grid = grid_for(hosts(64, 8), 512, 70, 10, True)

    assert isinstance(grid, EvenGrid)
    assert (grid.columns, grid.lines, grid.note()) == (64, 8, "")
    assert lines_of(grid, bytes([HEALTHY]) * 512)[1] == " 64 " + "·" * 64


def test_half_blocks_show_both_ranks_and_the_culprits_own_sign():
    codes = bytearray([HEALTHY]) * 512
    codes[70], codes[300] = BLOCKED, KILLED + AT_FAULT
    grid = grid_for(hosts(64, 8), 512, 70, 5, True)
    line = map_line(grid, bytes(codes), 0)

    assert grid.note() == "1 cell = 2 ranks, one above the other"
    assert plain(line) == "  0 " + "▀" * 64
    assert line[1:] == (
        ("▀" * 6, "half:bar/bar"),
        ("▀", "half:bar/slab"),
        ("▀" * 57, "half:bar/bar"),
    )
    assert plain(map_line(grid, bytes(codes), 2))[4 + 300 % 64] == "✝"
    assert grid.ranks_at(4 + 6, 0) == [6, 70]
    assert grid.moved(6, 0, 1) == 70


def test_without_colours_one_cell_stands_for_the_worst_of_several():
    codes = bytearray([HEALTHY]) * 512
    codes[300] = KILLED + AT_FAULT
    grid = grid_for(hosts(64, 8), 512, 70, 5, False)

    assert grid.note() == "1 cell = 2 ranks, the worst of them"
    assert lines_of(grid, bytes(codes))[2] == "256 " + "·" * 22 + "✝" + "·" * 41


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 3000),
    st.integers(1, 16),
    st.integers(12, 220),
    st.integers(1, 60),
    st.booleans(),
)
def test_every_rank_has_a_cell_and_no_line_is_wider_than_the_screen(
    count, each, width, height, halves
):
    found = hosts_of_ranks([f"n{rank // each}" for rank in range(count)])
    grid = grid_for(found, count, width, height, halves)
    codes = bytes(rank % len(CLASSES) for rank in range(count))

    assert grid.lines <= height
    shown = [
        rank
        for y in range(grid.lines)
        for piece in grid.pieces(y)
        for rank in (*piece.ranks, *piece.below)
    ]
    assert sorted(shown) == list(range(count))
    for y in range(grid.lines):
        assert line_width(map_line(grid, codes, y, 0)) <= width
    for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1)):
        assert 0 <= grid.moved(count // 2, dx, dy) < count


def test_ranks_that_nobody_has_seen_stand_last():
    assert [host.name for host in hosts_of_ranks([None, "b", "a", "b"])] == ["b", "a", "not seen"]


def test_the_legend_names_few_ranks_and_counts_many():
    snapshot, _ = builders.hang(64, 13)
    codes = codes_of(snapshot, (13,))

    assert (
        plain(legend_line(snapshot, codes, 80)) == "✖ 1 culprit: rank 13 on node001  ■ 63 blocked"
    )
    assert plain(legend_line(snapshot, codes, 34)) == "✖ 1 culprit: rank 13 on node001"
    assert (
        plain(legend_line(snapshot, codes, 80, ASCII))
        == "X 1 culprit: rank 13 on node001  # 63 blocked"
    )


def test_the_line_below_tells_the_rank_under_the_cursor_and_of_whom_a_cell_stands():
    snapshot, _ = builders.hang(64, 13)
    codes = codes_of(snapshot, (13,))

    assert (
        plain(cursor_line(snapshot, codes, 13, (13,), 80))
        == "rank 13  ✖ culprit  node001  DataLoader data.py:40, 31 s"
    )
    assert plain(cursor_line(snapshot, codes, 13, range(8, 16), 90)).startswith(
        "ranks 8-15: 1 culprit, 7 blocked  rank 13  ✖ culprit"
    )


@pytest.mark.parametrize("palette", PALETTES.values(), ids=PALETTES.keys())
def test_every_cell_has_a_style_and_a_line_its_width(palette):
    """A segment without a style ends the app where NO_COLOR is set."""
    codes = bytes([HEALTHY, BLOCKED, KILLED + AT_FAULT, FINISHED] * 20)
    for halves in (False, True):
        grid = EvenGrid(80, 16, 3, 1, halves)
        for y in range(grid.lines):
            strip = map_strip(map_line(grid, codes, y, 3), 60, palette)
            assert strip.cell_length == 60
            assert all(segment.style is not None for segment in strip)
