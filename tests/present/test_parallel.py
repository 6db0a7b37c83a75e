"""The grid of ranks by their parallel groups."""

from ddtop.model.facts import Axis, State
from ddtop.present.now import grid_lines, grid_rows, place_text
from ddtop.present.text import line_width, plain
from tests.ui import builders
from tests.ui.changed import replace


def placed(world_size, culprit, **sizes):
    """A hang in a mesh with these dimensions."""
    snapshot, verdict = builders.hang(world_size, culprit)
    axes, ranks = tuple(Axis(name, size) for name, size in sizes.items()), []
    for rank in snapshot.ranks:
        rest, places = rank.rank, []
        for axis in reversed(axes):
            rest, place = divmod(rest, axis.size)
            places.insert(0, (axis.name, place, axis.size))
        ranks.append(replace(rank, comm={"coordinates": tuple(places)}))
    return replace(snapshot, ranks=tuple(ranks), axes=axes), verdict


def texts(snapshot, width=80, most=10, at_fault=()):
    return [plain(line) for line in grid_lines(snapshot, width, most, at_fault)]


def test_a_grid_has_a_column_for_each_place_inside_and_a_row_for_each_outside():
    snapshot, _ = placed(8, 5, pp=2, dp=2, tp=2)

    assert texts(snapshot) == [
        "pp  dp  tp    0   1",
        " 0   0        0   1",
        " 0   1        2   3",
        " 1   0        4  ✖5",
        " 1   1        6   7",
    ]
    assert place_text(snapshot, snapshot.ranks[5]) == "pp 1, dp 0, tp 1"


def test_one_dimension_is_one_row():
    assert texts(placed(4, 1, fsdp=4)[0]) == ["fsdp    0   1   2   3", "        0  ✖1   2   3"]


def test_a_job_without_parallel_groups_has_no_grid():
    assert texts(builders.hang()[0]) == []


def test_where_not_all_rows_fit_those_in_trouble_are_shown():
    snapshot, _ = placed(64, 37, dp=32, tp=2)
    calm = tuple(
        rank if rank.rank in (36, 37) else replace(rank, state=State.RUNNING)
        for rank in snapshot.ranks
    )
    found = texts(replace(snapshot, ranks=calm), most=5, at_fault=(37,))

    assert found[-2:] == [
        "18       36 ✖37",
        "29 more rows: filter the ranks by dp:0 tp:0",
    ]
    assert len(found) == 5


def test_a_row_too_wide_for_its_cells_has_ranges_by_state():
    found = texts(placed(128, 70, dp=2, tp=64)[0])

    assert found == [
        "dp  tp 0-63, as ranks",
        " 0     0-63 blocked",
        " 1     70 culprit · 64-69,71-127 blocked",
    ]


def test_no_line_is_wider_than_the_screen_whatever_the_size():
    for width in (30, 60, 100):
        for world_size, dp in ((8, 4), (64, 8), (256, 4)):
            snapshot, _ = placed(world_size, 3, dp=dp, tp=world_size // dp)
            lines = grid_lines(snapshot, width, 10)
            assert all(line_width(line) <= width for line in lines)


def test_a_rank_that_has_not_reported_its_place_is_in_no_cell():
    snapshot, _ = placed(4, 1, dp=2, tp=2)
    silent = replace(snapshot.ranks[2], comm={"coordinates": ()})
    rows = grid_rows(replace(snapshot, ranks=(*snapshot.ranks[:2], silent, snapshot.ranks[3])))

    assert [row.cells for row in rows] == [((0,), (1,)), ((), (3,))]
