"""Pieces of text and numbers, as they appear in cells and sentences."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtop.present.text import (
    ASCII,
    UNICODE,
    bar,
    cell_width,
    clean,
    clip,
    clip_line,
    elide,
    fit,
    hang,
    line_width,
    middle,
    phases,
    shares,
    short_names,
    wrap,
    wrap_clauses,
)
from ddtop.words import units
from ddtop.words.sentences import rank_list, ranks_text


@given(st.text(), st.integers(0, 60), st.booleans())
def test_a_fitted_text_is_exactly_as_wide_as_its_cell(text, width, right):
    assert cell_width(fit(clean(text), width, right)) == width


@pytest.mark.parametrize(
    ("text", "width", "short"),
    [
        ("all_reduce dp_2 #196801", 23, "all_reduce dp_2 #196801"),
        ("all_reduce dp_2 #196801", 22, "all_reduce dp_2 #…6801"),
        ("all_reduce dp_2 #196801", 18, "all_re… dp_2 #…801"),
        ("lock callbacks.py:57", 17, "lock …backs.py:57"),
        ("lock callbacks.py:57", 12, "lock callba…"),
        ("exit code 1: ValueError", 15, "exit code 1: V…"),
        ("recv", 3, "re…"),
        ("exit code 1: ", 9, "exit cod…"),
    ],
)
def test_a_text_that_is_cut_keeps_the_number_at_its_end(text, width, short):
    assert elide(text, width) == short


@given(st.text(), st.integers(0, 60))
def test_an_elided_text_is_never_wider_than_its_cell(text, width):
    assert cell_width(elide(clean(text), width)) <= width


@given(st.text(), st.integers(1, 60))
def test_a_wrapped_text_is_never_wider_than_the_screen(text, width):
    widest = max((cell_width(character) for character in clean(text)), default=1)

    assert all(cell_width(line) <= max(width, widest) for line in wrap(clean(text), width))


@pytest.mark.parametrize("width", range(9, 60))
def test_a_number_and_its_unit_stay_on_one_line(width):
    lines = wrap("asleep in read for 27 s; twice (1,5 ms), of 1.2 GiB and 3 sends", width)

    for pair in ("27 s;", "(1,5 ms),", "1.2 GiB"):
        assert any(pair in line for line in lines)
    assert max(map(len, lines)) <= max(width, 9)


@given(st.text())
def test_a_cleaned_text_cannot_move_the_cursor(text):
    """Otherwise a host name with an escape sequence would write over the viewer's screen."""
    cleaned = clean(text)

    assert all(character.isprintable() for character in cleaned)


def test_an_escape_sequence_in_a_name_is_shown_and_not_obeyed():
    assert clean("node\x1b[2J1\n") == "node?[2J1 "


def test_a_wide_character_counts_as_two_columns():
    assert cell_width("計算機1") == 7
    assert fit("計算機1", 6) == "計算… "


def test_a_clause_after_a_semicolon_starts_its_own_line_where_that_is_cheap():
    text = "rank 5 sleeps in load_image for 31 s; ranks 0-4 wait for it"

    assert wrap_clauses(text, 44) == [
        "rank 5 sleeps in load_image for 31 s;",
        "ranks 0-4 wait for it",
    ]
    assert wrap_clauses(text, 80) == [text]


def test_a_cut_line_says_so_whatever_span_the_cut_falls_into():
    line = (("abc", ""), ("defgh", "dim"))

    assert clip_line(line, 8) == line
    assert clip_line(line, 5) == (("abc", ""), ("d…", "dim"))
    assert [line_width(clip_line(line, width)) for width in range(9)] == list(range(9))


def test_ranks_are_written_the_way_people_write_them():
    assert rank_list((0, 1, 2, 3, 4, 6, 7)) == "0-4,6,7"
    assert rank_list((5,)) == "5"
    assert rank_list((9, 1, 5, 7), most=2) == "1,5 and 2 more"
    assert (ranks_text(()), ranks_text((3,)), ranks_text((3, 4))) == ("", "rank 3", "ranks 3,4")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0, "0.0s"),
        (9.94, "9.9s"),
        (31, "31s"),
        (119, "119s"),
        (600, "10m"),
        (7300, "2h"),
        (2e5, "2d"),
    ],
)
def test_an_age_says_its_unit(seconds, text):
    assert units.age(seconds) == text


@given(st.floats(0, 1e12))
def test_numbers_in_cells_never_outgrow_their_column(value):
    """A column keeps its width for years of run time, terabytes and a hundred cores."""
    assert len(units.age(value)) <= 4
    assert len(units.milliseconds(value)) <= 7
    assert len(units.narrow_count(int(value), 7)) <= 7
    assert len(units.size(int(value))) <= 5
    assert len(units.percent(value)) <= 4
    assert len(units.cores(value)) <= 4


@pytest.mark.parametrize("value", [1e308, float("inf")])
def test_a_number_without_sense_is_a_large_number(value):
    assert (units.percent(value), units.cores(value)) == ("999%", "999c")
    assert units.milliseconds(value) == "9" * 7


def test_durations_in_sentences_have_two_units_at_most():
    spoken = [units.duration(seconds) for seconds in (31, 120, 1769, 3660, 90_000)]

    assert spoken == ["31 s", "2 min", "29 min 29 s", "1 h 1 min", "1 d 1 h"]


def test_sizes_are_powers_of_1024():
    assert [units.size(number) for number in (0, 512, 2**20 * 4, 1_300_000_000, None)] == [
        "0B",
        "512B",
        "4.0M",
        "1.2G",
        "-",
    ]
    assert units.long_size(4 * 2**20) == "4.0 MiB"


def test_a_bar_fills_its_columns_in_halves_and_in_whole_cells_without_unicode():
    assert bar(0.5, 4) == "━━  "
    assert bar(0.9, 4) == bar(0.99, 4) == "━━━╸"
    assert bar(1.0, 4) == "━━━━"
    assert bar(0.5, 5, ASCII) == "##   "
    assert bar(0.001, 4) == "╸   "
    assert bar(0.0, 4) == "    "


@given(st.lists(st.floats(0, 1), max_size=7), st.integers(0, 40))
def test_shares_fill_their_columns_exactly_or_not_at_all(ratios, width):
    assert sum(shares(ratios, width)) in (0, width)


def test_phases_are_letters_so_that_they_need_no_colour():
    assert phases((0.25, 0.25, 0.25, 0.0, 0.25, 0.0, 0.0), 8) == "LLFFBBCC"
    assert phases((), 8) == ""


def test_every_glyph_is_one_column_wide_and_distinguished():
    for glyphs in (UNICODE, ASCII):
        assert all(cell_width(glyph) == 1 for glyph in glyphs.states.values())
        assert len(set(glyphs.states.values())) >= 10
    assert "".join(ASCII.states.values()).isascii()


def test_a_clip_to_nothing_is_empty():
    assert clip("abc", 0) == ""


def test_an_indented_text_stays_indented_in_all_its_lines():
    assert hang("  └ which waits for a pipe", 16, "· ") == [
        "·   └ which",
        "    waits for a",
        "    pipe",
    ]


@given(st.text(max_size=60), st.integers(0, 40))
def test_a_name_cut_in_its_middle_fits(name, width):
    name = clean(name)

    assert cell_width(middle(name, width)) <= max(width, 0)
    assert middle(name, cell_width(name)) == name


def test_a_name_is_told_by_its_two_ends():
    assert middle("prefetch_from_storage", 11) == "prefe…orage"
    assert short_names("ls /data/a_very_long_folder/x.py -l", 9) == "ls /data/a_ve…lder/x.py -l"
