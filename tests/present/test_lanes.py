"""Lanes: what a rank did in each second, and how it is drawn."""

from collections import deque

import pytest

from ddtop.follow.history import SeriesHistory, empty_memory
from ddtop.follow.lanes import (
    ASLEEP,
    COLLECTIVE,
    DATA,
    GONE,
    GPU,
    STEPS,
    WORK,
    cell_of,
    joined_cells,
    lane_cell,
    parts_of,
)
from ddtop.present.lanes import Lanes, alike, lane_line, legend
from ddtop.present.text import ASCII, UNICODE, plain
from tests.ui import builders
from tests.ui.builders import SECOND
from tests.ui.changed import replace

BEFORE = (10, 20, 30, 5, 40, 0, 3)


def after(loader=0, forward=0, backward=0, optimizer=0, collective=0, sync=0, other=0):
    grown = (loader, forward, backward, optimizer, collective, sync, other)
    return tuple(was + more for was, more in zip(BEFORE, grown, strict=True))


@pytest.mark.parametrize(
    ("grown", "cpu", "cell"),
    [
        ({"forward": 2, "backward": 2}, 1.0, (WORK, STEPS)),
        ({"forward": 1, "collective": 3}, 0.3, (COLLECTIVE, STEPS // 4)),
        ({"loader": 4}, 0.0, (DATA, 0)),
        ({"sync": 3, "backward": 1}, 1.0, (GPU, STEPS // 4)),
        # In the backward of autograd, and next to no CPU is used: a straggler that sleeps there.
        ({"backward": 4}, 0.02, (ASLEEP, 0)),
        # Four ranks on one core.
        ({"backward": 4}, 0.26, (WORK, STEPS)),
        # Nobody has measured its CPU.
        ({"backward": 4}, None, (WORK, STEPS)),
    ],
)
def test_a_cell_is_the_growth_of_a_second_and_asleep_is_not_work(grown, cpu, cell):
    assert parts_of(lane_cell(BEFORE, after(**grown), cpu)) == cell


def test_a_thread_that_only_starts_kernels_is_not_asleep_but_one_in_its_own_code_is():
    assert parts_of(lane_cell(BEFORE, after(backward=4), 0.02, on_gpu=True))[0] == WORK
    assert parts_of(lane_cell(BEFORE, after(other=4), 0.02, on_gpu=True))[0] == ASLEEP


def test_a_wait_for_the_gpu_of_a_rank_that_waits_for_others_is_a_collective():
    assert parts_of(lane_cell(BEFORE, after(sync=4), 1.0, True, True))[0] == COLLECTIVE


def test_counters_that_fell_or_stand_give_no_cell():
    assert lane_cell(BEFORE, BEFORE, 1.0) is None
    assert lane_cell(after(loader=1), BEFORE, 1.0) is None
    assert lane_cell((), (), 1.0) is None


def seen(*seconds):
    """The memory of a rank of whom these cells were seen in these seconds."""
    memory = empty_memory()
    for second, cell in seconds:
        memory.seconds.append(second)
        memory.lane.append(cell)
    return memory


def test_a_second_without_a_look_has_the_cell_before_it_and_two_have_none():
    work = cell_of(WORK, 1.0)
    memory = seen((100, work), (102, work), (106, None), (107, work))
    assert memory.lane_until(108, 9) == [work, work, work, work, None, None, None, work, work]
    assert seen().lane_until(5, 3) == [None, None, None]


def test_a_history_keeps_what_another_one_saw_before_it():
    def watched(*seconds):
        history = SeriesHistory()
        for second in seconds:
            ranks = tuple(
                replace(
                    rank,
                    reported={"activity_samples": (0, 4 * (second - 90), 0, 0, 0, 0, 0)},
                    process={"rss_bytes": second},
                )
                for rank in builders.healthy(2).ranks
            )
            looked = replace(builders.healthy(2), ranks=ranks, time_unix_ns=second * SECOND)
            history.record(looked)
        return history

    late = watched(105, 106, 107)
    late.absorb(watched(*range(100, 107)))
    memory = late.memory_of(1)
    assert [*memory.rss_bytes] == [*range(100, 108)]
    work = cell_of(WORK, 1.0)
    assert memory.lane_until(107, 8) == [None, *[work] * 7]
    assert isinstance(memory.lane, deque)


def test_a_lane_shows_height_signs_and_the_end_of_a_rank():
    cells = [
        cell_of(WORK, 1.0),
        cell_of(DATA, 0.5),
        cell_of(COLLECTIVE, 0.05),
        cell_of(ASLEEP, 0.0),
        None,
        cell_of(GONE, 0.0),
        cell_of(GONE, 0.0),
    ]
    line = lane_line(cells)
    assert "".join(text for text, _ in line) == "▇▃▒─ ✝ "
    assert line[1] == ("▃", "band0:band2")
    assert plain(lane_line(cells, ASCII)) == "#-cz x"


def test_the_legend_names_only_what_is_seen_the_most_frequent_first():
    lanes = [[cell_of(COLLECTIVE, 0.0)] * 3, [cell_of(ASLEEP, 0.0)] * 2, [None]]
    assert plain(legend(lanes, UNICODE, 60)) == " ▒ collective ─ asleep ▇ at work"
    assert plain(legend(lanes, UNICODE, 24)) == " ▒ collective ─ asleep"


@pytest.mark.parametrize("ranks", [4, 64, 512])
def test_equal_ranks_are_one_lane_so_that_all_jobs_have_one_size(ranks):
    snapshot, verdict = builders.hang(ranks, 2)
    classes = alike(snapshot, verdict.findings[0].ranks, (), 2.0)
    assert [(one.label, len(one.ranks), one.at_fault) for one in classes] == [
        ("2", 1, True),
        (f"{ranks - 1:,} default_pg", ranks - 1, False),
    ]


def test_ranks_that_wait_for_those_that_wait_are_behind_them():
    snapshot, _ = builders.hang(6, 2)
    ranks = list(snapshot.ranks)
    for number in (4, 5):
        ranks[number] = replace(ranks[number], wait=replace(ranks[number].wait, behind=(3,)))
    classes = alike(replace(snapshot, ranks=tuple(ranks)), (2,), (), 2.0)
    assert [one.label for one in classes] == ["2", "3 default_pg", "2 behind"]
    assert classes[-1].ranks == (4, 5)


def test_the_waits_of_a_job_that_moves_make_no_classes_but_its_victims_do():
    snapshot, _ = builders.straggling(8, 3)
    found = alike(snapshot, (3,), (0, 1), 2.0)
    assert [one.label for one in found] == ["3", "2 wait for it", "5 others"]


def test_a_cell_has_more_seconds_where_the_fault_began_before_the_lane_would():
    work, wait = cell_of(WORK, 1.0), cell_of(COLLECTIVE, 0.0)
    memory = seen(*((second, work if second < 100 else wait) for second in range(60, 160)))
    short, long = Lanes(lambda _: memory, 159, 150), Lanes(lambda _: memory, 159, 100)
    assert short.each(20) == 1
    assert set(short.of(0, 20)) == {wait}
    assert long.each(20) == 5
    assert long.of(0, 20) == [*[work] * 8, *[wait] * 12]
    assert Lanes(lambda _: memory, 159).each(20) == 5
    assert Lanes(lambda _: memory, 159).each(120) == 1


def test_seconds_that_are_joined_have_their_mean_and_their_most_frequent_wait():
    cells = [cell_of(WORK, 1.0), cell_of(DATA, 0.5), cell_of(COLLECTIVE, 0.0), None]
    assert parts_of(joined_cells(cells)) == (COLLECTIVE, STEPS // 2)
    assert parts_of(joined_cells([cell_of(WORK, 1.0), cell_of(GONE, 0.0)]))[0] == GONE
    assert joined_cells([None]) is None


def test_ranks_at_fault_that_are_many_are_one_lane():
    snapshot, _ = builders.hang(64, 2)
    labels = [one.label for one in alike(snapshot, tuple(range(8)), (), 2.0)]
    assert labels[0] == "8 ranks"
