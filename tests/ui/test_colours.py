"""Colours, checked by computation: text is readable, and states can be distinguished without seeing
hues.
"""

from itertools import combinations, pairwise

import pytest

from ddtop.present.map import LEVELS, Levelled, grid_for, hosts_of_ranks, map_metric
from ddtop.present.text import ASCII, STATE_STYLES, UNICODE, glyphs_for, plain
from ddtop.ui.rows import LevelLook, level_look, levels_line, map_line
from ddtop.ui.style import CELLS, DARK, LIGHT, PALETTES, THEMES
from tests.ui import gpus
from tests.ui.colours import BLIND, contrast, difference, linear, luminance, seen_by

COLOURED = [PALETTES[DARK], PALETTES[LIGHT]]
DRAWN = {
    *("rule", "bar"),
    *(f"level{at}" for at in range(LEVELS)),
    *(f"{name}{at}" for name in ("chart", "band") for at in range(4)),
    *(f"band{low}:band{high}" for low, high in combinations(range(4), 2)),
    *(f"{way}:{cell}" for way in ("edge", "odd") for cell in CELLS),
}
"""Styles of lines, bars and cells: no text is in them."""
READABLE, SEEN, AT_A_GLANCE = 4.5, 1.3, 10.0


@pytest.mark.parametrize("palette", COLOURED, ids=[DARK, LIGHT])
def test_all_text_can_be_read_also_under_the_cursor_and_in_alarm(palette):
    for name, style in palette.styles.items():
        if name in DRAWN or name == "edge:":
            continue
        assert contrast(style.color, style.bgcolor) >= READABLE, name
        if style.bgcolor == palette[""].bgcolor:
            assert contrast(style.color, palette.cursor.bgcolor) >= READABLE, name
    for over in (palette.alarm, palette.alarm_cursor):
        assert contrast(over.color, over.bgcolor) >= READABLE


@pytest.mark.parametrize("palette", COLOURED, ids=[DARK, LIGHT])
def test_what_is_drawn_can_be_seen(palette):
    for name in DRAWN & set(palette.styles):
        assert contrast(palette[name].color, palette[""].bgcolor) >= SEEN, name


@pytest.mark.parametrize("blindness", BLIND)
@pytest.mark.parametrize("palette", COLOURED, ids=[DARK, LIGHT])
def test_the_colours_of_states_differ_for_the_colour_blind(palette, blindness):
    names = ("", "dim", "blocked", "culprit", "straggler", "silent", "starting")
    seen = {name: seen_by(linear(palette[name].color), blindness) for name in names}
    for one, other in combinations(names, 2):
        assert difference(seen[one], seen[other]) >= AT_A_GLANCE, (one, other)


@pytest.mark.parametrize("palette", COLOURED, ids=[DARK, LIGHT])
def test_the_levels_of_a_map_are_an_order_without_hues(palette):
    levels = [linear(palette[f"level{at}"].color) for at in range(LEVELS)]
    bright = [luminance(one) for one in levels]
    assert bright in (sorted(bright), sorted(bright, reverse=True))
    for blindness in BLIND:
        seen = [seen_by(one, blindness) for one in levels]
        assert all(difference(a, b) >= AT_A_GLANCE for a, b in pairwise(seen))


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
def test_levels_have_signs_of_their_own(glyphs):
    assert len({level_look(code, glyphs)[0] for code in range(LEVELS + 1)}) == LEVELS + 1


def test_every_state_has_its_own_sign_or_word_beside_its_colour():
    for glyphs in (UNICODE, ASCII):
        told = {(glyphs.states[state], state.value) for state in STATE_STYLES}
        assert len(told) == len(STATE_STYLES)


def test_every_style_is_there_in_every_theme():
    names = set(PALETTES[DARK].styles)
    for theme in THEMES:
        missing = names - set(PALETTES[theme].styles)
        assert not missing, (theme, missing)


def test_under_lang_c_the_legend_of_the_map_is_ascii():
    glyphs = glyphs_for("ANSI_X3.4-1968", "screen")
    snapshot, metric = gpus.on_gpus(), map_metric("heat")
    assert metric is not None
    levels = Levelled().take(metric, snapshot, bytes(8))
    look = LevelLook(glyphs)
    look.take_levels(levels, bytes(8))
    assert plain(levels_line(snapshot, look, 120)).isascii()
    grid = grid_for(hosts_of_ranks(["gpu0"] * 8), 8, 120, 20)
    assert all(plain(map_line(grid, look, y)).isascii() for y in range(20))
