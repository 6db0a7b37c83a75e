"""Charts: how values become lines of signs, and the ends of their scales."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtop.present.charts import chart, scale, stack
from ddtop.present.text import ASCII, UNICODE, plain


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
        ([5.1, 5.3], (4.5, 6.0)),
        ([100.0, 200.0], (100.0, 200.0)),
        ([0.0], (0.0, 1.0)),
        ([], (0.0, 1.0)),
        ([-2.0, -1.0], (-2.0, -1.0)),
        ([None, 1000.0], (900.0, 1100.0)),
    ],
)
def test_a_scale_has_round_ends_and_begins_at_zero_unless_all_values_are_far_from_it(values, ends):
    assert scale(values) == pytest.approx(ends)


@given(st.lists(st.none() | st.floats(-1e38, 1e38, allow_subnormal=False)))
def test_a_scale_has_room_for_all_its_values(values):
    low, high = scale(values)
    assert low < high
    slack = (high - low) * 1e-6
    assert all(value is None or low - slack <= value <= high + slack for value in values)
    assert len(chart(values, (low, high))[0][0][0]) == len(values)


def test_noise_does_not_fill_a_scale_but_a_small_change_of_a_loss_does():
    low, high = scale([5.0, 5.1])
    assert high - low >= 0.2 * 5.1
    low, high = scale([1.95, 2.0], 0.02)
    assert high - low < 0.1


def test_shares_are_stacked_and_each_has_its_own_sign():
    bands = [
        ((sign, f"band{at}"), [share])
        for at, (sign, share) in enumerate(zip("#cl", (0.5, 0.3, 0.2), strict=True))
    ]
    lines = stack(bands, 10, ASCII)
    assert "".join(drawn(lines)) == "llccc#####"
    assert [line[0][1] for line in lines[::4]] == ["band2", "band1", "band0"]


def test_a_cell_with_two_shares_has_both_colours():
    bands = [((UNICODE.bands[at], f"band{at}"), [share]) for at, share in ((0, 0.25), (1, 0.75))]
    assert stack(bands, 2) == [(("▓", "band1"),), (("▄", "band0:band1"),)]
    quiet = [((sign, "bar"), values) for (sign, _), values in bands]
    assert stack(quiet, 2) == [(("▓", "bar"),), (("█", "bar"),)]


def test_a_share_that_was_not_measured_leaves_the_column_empty():
    bands = [(("#", "band0"), [None, 1.0]), (("c", "band1"), [None, 0.0])]
    assert drawn(stack(bands, 1, ASCII)) == [" #"]


def test_what_the_shares_leave_of_the_whole_stays_empty():
    assert drawn(stack([(("█", "band0"), [0.5, 0.25])], 2)) == ["", "█▄"]
