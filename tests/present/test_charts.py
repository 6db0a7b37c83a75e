"""Charts: how values become lines of signs, and the ends of their scales."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtop.present.charts import chart, dotted, scale, size_scale, with_scale
from ddtop.present.text import ASCII, plain


def drawn(lines):
    return [plain(line) for line in lines]


def test_one_row_has_a_sign_for_each_value_and_a_gap_where_nothing_was_measured():
    assert drawn(chart([0, 1, None, 2], (0, 2))) == ["▁▄ ▇"]
    assert drawn(chart([0, 1, None, 2], (0, 2), glyphs=ASCII)) == ["_= #"]
    assert drawn(chart([], (0, 2))) == [""]


def test_more_rows_are_filled_cells_and_zero_has_a_foot():
    values = [0.0, 0.5, 0.75, 1.0, None, 0.25]
    assert drawn(chart(values, (0.0, 1.0), 2)) == ["  ▄█", "▁███ ▄"]
    assert drawn(chart([0.0, 0.5, 1.0, None], (0, 1), 2, ASCII)) == ["  #", "_##"]


def test_an_area_is_coloured_by_height_unless_nothing_may_draw_the_eye():
    lines = chart([1.0] * 8, (0.0, 1.0), 4)
    assert [style for ((_, style),) in lines] == ["chart3", "chart2", "chart1", "chart0"]
    assert {style for ((_, style),) in chart([1.0] * 8, (0.0, 1.0), 4, quiet=True)} == {"bar"}


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        ([0.0, 5.1], (0.0, 6.0)),
        ([5.1, 5.3], (0.0, 6.0)),
        ([100.0, 200.0], (0.0, 200.0)),
        ([0.0], (0.0, 1.0)),
        ([], (0.0, 1.0)),
        ([None, 1000.0], (0.0, 1000.0)),
    ],
)
def test_a_scale_has_round_ends_and_begins_at_zero(values, ends):
    assert scale(values) == pytest.approx(ends)


@given(st.lists(st.none() | st.floats(-1e38, 1e38, allow_subnormal=False)), st.booleans())
def test_a_scale_has_room_for_all_its_values(values, filled):
    low, high = scale(values, filled)
    assert low < high
    slack = (high - low) * 1e-6
    assert all(value is None or low - slack <= value <= high + slack for value in values)
    assert len(chart(values, (low, high))[0][0][0]) == len(values)


def test_noise_does_not_fill_a_scale_but_a_small_change_of_a_loss_does():
    low, high = scale([5.0, 5.1], filled=False)
    assert high - low >= 0.2 * 5.1
    low, high = scale([1.95, 2.0], filled=False, least=0.02)
    assert high - low < 0.1


def test_what_is_filled_begins_at_zero_so_that_its_height_does_not_lie():
    """A fall by 38 % was drawn as one by 90 %."""
    fast, slow = 8.0, 8.0 * 0.62
    _, high = scale([fast, slow])
    top, *_ = drawn(chart([fast, slow], scale([fast, slow]), 8))
    assert high == 8.0
    assert len([line for line in drawn(chart([slow], (0.0, high), 8)) if line]) == 5
    assert top == "█"


def test_a_line_of_dots_has_no_holes_and_may_show_a_narrow_range():
    ends = scale([3.9, 4.1], filled=False, least=0.02)
    assert ends[0] > 3.5
    assert drawn(dotted([4.1, 3.9], ends, 2)) == ["⠉⡇", " ⣇"]
    assert drawn(dotted([0.0, None, 1.0], (0.0, 1.0), 2, ASCII)) == ["  #", "#"]


def test_a_scale_stands_at_the_left_and_touches_its_chart():
    lines = with_scale(chart([1.0, 2.0], (0.0, 2.0), 3), ("0", "2 it/s"), 6)
    assert drawn(lines) == ["2 it/s┤ █", "      ┤▄█", "     0┤██"]


def test_a_scale_of_bytes_is_round_in_their_unit():
    assert size_scale([321 * 2**20]) == (0.0, 400 * 2**20)
    assert size_scale([61.9 * 2**30]) == (0.0, 80 * 2**30)
