"""The map: classes that do not flicker, ways to lay ranks out, and its cells as text."""

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
    STRAGGLER,
    HostRanks,
    Settled,
    class_of,
    codes_of,
    counts,
    glyph_of,
    grid_for,
    hosts_of_ranks,
    ranks_in,
)
from ddtop.present.text import ASCII, UNICODE, line_width, plain
from ddtop.ui.rows import StateLook, cursor_line, legend_line, map_line, map_strip
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


def test_who_waits_for_the_rank_at_fault_differs_from_who_waits_for_those():
    """9,999 victims of one colour showed nobody the way to the culprit."""
    snapshot, _ = builders.hang(4, 1)
    ranks = list(snapshot.ranks)
    ranks[3] = replace(ranks[3], wait=replace(ranks[3].wait, behind=(0, 2)))
    codes = codes_of(replace(snapshot, ranks=tuple(ranks)), (1,))

    words = [class_of(code).word for code in codes]
    assert words == ["blocked", "culprit", "blocked", "behind"]
    assert glyph_of(codes[3]) != glyph_of(codes[0])
    # Where nobody is at fault, all of them wait alike.
    assert {class_of(code).word for code in codes_of(snapshot)} == {"blocked", "culprit"}


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


def showing(codes, glyphs=UNICODE):
    look = StateLook(glyphs)
    look.take(bytes(codes))
    return look


def lines_of(grid, codes, glyphs=UNICODE, picked=None):
    look = showing(codes, glyphs)
    return [plain(map_line(grid, look, y, picked)) for y in range(grid.lines)]


def test_each_host_is_a_tile_with_its_name_and_cells_fill_the_screen():
    codes = bytearray([HEALTHY]) * 24
    codes[13] = KILLED + AT_FAULT

    assert lines_of(grid_for(hosts(3, 8), 24, 60, 6), codes) == [
        "node000 ───────       node001 ───────       node002 ───────",
        " 0   1   2   3         8   9  10  11        16  17  18  19",
        "",
        " 4   5   6   7        12  13  14  15        20  21  22  23",
        "                           ✝",
    ]
    assert lines_of(grid_for(hosts(3, 8), 24, 30, 6), codes)[2:4] == [
        "node001 ───────────────",
        "·  ·  ·  ·  ·  ✝  ·  ·",
    ]


def test_a_job_of_one_host_has_large_cells_with_the_word_of_the_state():
    codes = bytearray([HEALTHY]) * 8
    codes[2] = STRAGGLER
    grid = grid_for(hosts(1, 8), 8, 120, 23, True)

    assert (grid.shape.width, grid.shape.height, grid.lines) == (30, 11, 23)
    shown = lines_of(grid, codes)
    assert shown[5].split() == ["rank", "0", "rank", "1", "rank", "2", "rank", "3"]
    assert "▲ straggler" in shown[6]


@pytest.mark.parametrize(
    ("count", "width", "height", "cell", "named"),
    [
        (64, 120, 24, (7, 5), True),
        (64, 80, 13, (4, 2), True),
        (512, 120, 24, (3, 1), True),
        (512, 80, 12, (1, 1), False),
        (512, 200, 40, (5, 2), True),
        (4096, 200, 40, (1, 1), False),
    ],
)
def test_cells_are_as_large_as_the_screen_allows_and_hosts_stay_together(
    count, width, height, cell, named
):
    grid = grid_for(hosts(count // 8, 8), count, width, height, True)

    assert (grid.shape.width, grid.shape.height) == cell
    assert grid.shape.titled is named
    assert (grid.shape.label_width > 0) is not named
    assert grid.note() == ""
    assert grid.shape.columns * grid.shape.rows == 8


def test_half_blocks_show_both_ranks_and_the_culprits_own_sign():
    codes = bytearray([HEALTHY]) * 512
    codes[4], codes[300] = BLOCKED, KILLED + AT_FAULT
    grid = grid_for(hosts(64, 8), 512, 70, 5, True)
    look = showing(codes)

    assert grid.note() == "1 cell = 2 ranks, one above the other"
    line = map_line(grid, look, 0)
    assert plain(line).startswith("▀▀▀▀ ▀▀▀▀ ▀▀▀▀")
    assert line[:3] == (
        ("▀", "half:edge:calm/edge:blocked"),
        ("▀▀▀", "half:edge:calm/edge:calm"),
        (" ", ""),
    )
    assert grid.ranks_at(0, 0) == [0, 4]
    assert grid.moved(0, 0, 1) == 4
    at = next((x, y) for y in range(5) for x in range(70) if 300 in grid.ranks_at(x, y))
    assert plain(map_line(grid, look, at[1]))[at[0]] == "✝"


def test_hosts_above_each_other_differ_in_shade_where_no_line_is_between_them():
    grid = grid_for(hosts(64, 8), 512, 70, 5, True)
    look = showing(bytes([HEALTHY]) * 512)

    assert map_line(grid, look, 0)[0][1] == "half:edge:calm/edge:calm"
    assert map_line(grid, look, 1)[0][1] == "half:odd:calm/odd:calm"


def test_without_colours_one_cell_stands_for_the_worst_of_several():
    codes = bytearray([HEALTHY]) * 512
    codes[300] = KILLED + AT_FAULT
    grid = grid_for(hosts(64, 8), 512, 70, 5)

    assert grid.note() == "1 cell = 2 ranks, the worst of them"
    assert "✝" in "".join(lines_of(grid, codes))
    assert list(grid.cell_of(300)) == [300, 301]


def test_without_room_for_a_tile_of_each_host_ranks_stand_in_their_order():
    grid = grid_for(hosts(512, 8), 4096, 40, 5, True)

    assert grid.note() == "1 cell = 2 times the worst of 16 ranks, one above the other"
    assert lines_of(grid, bytes([HEALTHY]) * 4096)[0].startswith("▀▀ ▀▀ ▀▀")
    assert sum(len(tile.ranks) for tile in grid.tiles) == 4096


def test_ranks_that_nobody_has_seen_do_not_shrink_the_cells_of_the_others():
    names = [f"node{rank // 8:03d}" for rank in range(64)] + [None] * 448
    few = grid_for(hosts_of_ranks(names), 512, 120, 24, True)

    assert few.shape == grid_for(hosts(36, 16), 576, 120, 24, True).shape
    assert few.tiles[-1].name == "not seen"


def test_the_name_of_a_host_has_the_colour_of_its_worst_rank():
    codes = bytearray([BLOCKED]) * 24
    codes[13], codes[20] = KILLED + AT_FAULT, STRAGGLER
    grid = grid_for(hosts(3, 8), 24, 80, 10, True)

    titles = [span for span in map_line(grid, showing(codes), 0) if "node" in span[0]]
    assert titles == [("node000", "dim"), ("node001", "culprit"), ("node002", "straggler")]


def test_the_keys_go_through_the_tiles_line_by_line():
    grid = grid_for(hosts(3, 8), 24, 60, 7)
    assert (grid.shape.columns, grid.shape.rows, grid.shape.across) == (4, 2, 3)

    assert grid.moved(3, 1, 0) == 8
    assert grid.moved(8, -1, 0) == 3
    assert grid.moved(19, 1, 0) == 4
    assert grid.moved(9, 0, 1) == 13
    assert grid.moved(13, 0, 1) == 13
    assert grid.moved(0, -1, 0) == 0
    two_lines = grid_for((*hosts(2, 8), HostRanks("z", (16, 17, 18))), 19, 36, 16)
    assert two_lines.shape.columns == 4
    assert two_lines.moved(15, 0, 1) == 18
    assert two_lines.moved(18, 1, 0) == 18


def test_a_click_on_a_cell_finds_its_rank_and_one_on_a_name_the_host():
    grid = grid_for(hosts(3, 8), 24, 60, 7)
    x = grid.stride + 2 * grid.shape.width

    assert grid.ranks_at(x, 1) == [10]
    assert grid.ranks_at(x, 0) == tuple(range(8, 16))
    assert grid.ranks_at(grid.tile_width, 1) == ()
    assert grid.ranks_at(x, 99) == ()


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 3000),
    st.integers(1, 16),
    st.integers(12, 220),
    st.integers(1, 60),
    st.booleans(),
)
def test_every_rank_has_a_cell_and_no_line_is_wider_than_the_screen(
    count, each, width, height, slabs
):
    found = hosts_of_ranks([f"n{rank // each}" for rank in range(count)])
    grid = grid_for(found, count, width, height, slabs)
    look = showing(rank % len(CLASSES) for rank in range(count))

    assert grid.lines <= height
    shown = {
        rank
        for y in range(grid.lines)
        if grid.on_line(y)[1] >= 0
        for x in range(width)
        for rank in grid.ranks_at(x, y)
    }
    assert shown == set(range(count))
    for y in range(height):
        assert line_width(map_line(grid, look, y, 0)) <= width
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
    for slabs, height in ((False, 20), (True, 20), (True, 2)):
        grid = grid_for(hosts(10, 8), 80, 60, height, slabs)
        for y in range(grid.lines):
            strip = map_strip(map_line(grid, showing(codes), y, 3), 60, palette)
            assert strip.cell_length == 60
            assert all(segment.style is not None for segment in strip)
            assert all(not segment.style.dim for segment in strip if "✝" in segment.text)
