"""A GPU that computes, one that only waits in NCCL, one that fails and one whose driver is silent
can be distinguished at every size.
"""

from __future__ import annotations

import pytest

from ddtop.follow.history import SeriesHistory
from ddtop.model.facts import Device, Snapshot
from ddtop.model.gpus import without_numbers
from ddtop.present.filter import by_column
from ddtop.present.gpus import clip_words, gpu_line
from ddtop.present.numbers import BY_KEY, REPLACED, CellContext, cell_text, rank_table
from ddtop.present.rank import detail_lines
from ddtop.present.text import ASCII, UNICODE, plain
from ddtop.ui.app import DdtopApp
from ddtop.ui.views.lists import HostsView
from ddtop.wire.records import Gpu, GpuProcess, GpuWatch, GroupProgress
from tests.ui import builders
from tests.ui.builders import JOB, NOW, SECOND, live
from tests.ui.changed import replace
from tests.ui.gpus import GIB, TROUBLE, WAITS, on_gpus
from tests.ui.screens import screen_text, watching

WAITERS = frozenset({0, 1, 2, 3, 4, 6, 7})


def gpu_cell(snapshot, rank, width=4, glyphs=UNICODE):
    return cell_text(BY_KEY["gpu"], snapshot.rank(rank), CellContext(NOW, glyphs), width)


def test_a_gpu_that_only_waits_says_so_where_its_share_would_stand():
    """nvidia-smi shows 100 % for both. At night a person must not mistake the seven that wait for
    the one that works.
    """
    snapshot = on_gpus(8, waits=WAITERS)

    assert [gpu_cell(snapshot, rank) for rank in (0, 5)] == ["wait", "95%"]
    assert [gpu_cell(snapshot, rank, 10) for rank in (0, 5)] == ["╌╌╌╌  wait", "━━━╸   95%"]
    assert [gpu_cell(snapshot, rank, 10, ASCII) for rank in (0, 5)] == ["::::  wait", "###    95%"]


def test_sorted_by_gpu_those_that_wait_stand_below_all_that_compute():
    snapshot = on_gpus(8, {5: {"util_ratio": 0.2}}, waits=WAITERS)

    assert by_column(snapshot, "gpu", True)[0] == 5
    assert by_column(snapshot, "gpu", False)[-1] == 5
    assert by_column(snapshot, "vram", True) == [7, 6, 5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_no_column_moves_with_what_the_gpus_do(width):
    shape = rank_table(width, 8, 7, REPLACED)
    seen = [on_gpus(), on_gpus(8, waits=WAITERS), on_gpus(8, TROUBLE)]
    texts = {
        cell_text(column, rank, CellContext(NOW), cells)
        for snapshot in seen
        for rank in snapshot.ranks
        for column, cells in zip(shape.fields, shape.widths, strict=True)
        if column.key in ("gpu", "vram", "nccl")
        and len(cell_text(column, rank, CellContext(NOW), cells)) > cells
    }

    assert {"gpu", "vram"} <= {column.key for column in shape.fields}
    assert texts == set()


def test_a_collective_that_is_open_for_a_moment_is_no_wait_of_nccl():
    """A collective of NCCL is open at nearly every look, so the column would flicker in every
    healthy job.
    """
    snapshot = on_gpus()

    def word(open_s: float) -> str:
        group = GroupProgress("0", 9, 8, pending_since_unix_ns=NOW - round(open_s * SECOND))
        rank = replace(
            snapshot.rank(0), comm={"groups": (group,), "collective_young": open_s < 1.0}
        )
        return cell_text(BY_KEY["nccl"], rank, CellContext(NOW), 4)

    assert [word(0.4), word(1.5)] == ["ok", "wait"]


def page(snapshot, rank, width=80):
    return [
        plain(line) for line in detail_lines(snapshot, rank, SeriesHistory().memory_of(rank), width)
    ]


def test_the_page_of_a_rank_begins_with_what_its_gpu_does():
    assert page(on_gpus(8, waits=WAITERS), 1)[3] == "GPU 1: 100% at 188 of 700 W: waits in NCCL"
    assert (
        page(on_gpus(8, TROUBLE), 1)[3] == "GPU 1: 96% at 612 of 700 W, 91 C, slowed down by heat"
    )
    assert page(on_gpus(8, TROUBLE), 5)[3] == "GPU 5: lost: it no longer answers"


SILENT = GpuWatch(41_000)


def silent(world_size=8):
    """The driver of the first host has not answered for long, and the model has removed its
    numbers.
    """
    snapshot = on_gpus(world_size, watch=SILENT)
    devices = tuple(replace(one, gpu=without_numbers(one.gpu)) for one in snapshot.devices)
    ranks = tuple(
        (
            replace(rank, gpu={"own": replace(rank.gpu.own, gpu=without_numbers(rank.gpu.own.gpu))})
            if rank.gpu.own
            else rank
        )
        for rank in snapshot.ranks
    )
    return replace(snapshot, devices=devices, ranks=ranks)


async def test_of_a_silent_driver_only_its_silence_is_reported():
    """A reader would trust numbers that are forty seconds old."""
    snapshot = silent()
    text = "\n".join(page(snapshot, 2))
    assert "silent for 41 s: its last values are left out" in text
    assert "GPU 2: nothing reported yet" in text

    async with watching(live(snapshot), size=(80, 24)) as (app, pilot):
        assert "driver silent on node000" in "\n".join(screen_text(app))
        await pilot.press("5")
        await pilot.pause()
        shown = "\n".join(screen_text(app))

    assert shown.count("  8 GPUs  driver silent 41s: its last values are left out") == 1
    assert "GPU 0" not in shown
    assert "41.0G" not in shown


async def test_without_a_driver_it_is_reported_once_and_nothing_has_room_for_gpus():
    snapshot = replace(builders.healthy(), hosts=builders.healthy().hosts)

    async with watching(live(snapshot), size=(120, 30)) as (app, pilot):
        assert "GPU" not in "\n".join(screen_text(app))
        await pilot.press("5")
        await pilot.pause()
        shown = "\n".join(screen_text(app))

    assert shown.count("no NVIDIA or AMD driver") == 1
    assert "GPUS" not in shown


@pytest.mark.parametrize(("age_s", "old"), [(4.0, False), (7.0, True)])
async def test_the_gpus_of_a_host_that_is_not_heard_are_old(age_s, old):
    snapshot = replace(on_gpus(8), host_ages_s=(age_s,))

    async with watching(live(snapshot), size=(120, 30)) as (app, pilot):
        await pilot.press("5")
        await pilot.pause()
        line = app.screen.query_one(HostsView).list.made(2).line

    assert ({style for _, style in line} == {"old"}) == old


async def test_of_many_hosts_only_the_gpus_in_trouble_are_listed_and_their_hosts_come_first():
    """1,250 hosts of eight GPUs are ten thousand rows, one of which matters."""
    many = 8 * 20
    snapshot = on_gpus(many, {100: {"lost": True}, 101: WAITS}, waits=frozenset({101}))

    async with watching(live(snapshot), size=(120, 40)) as (app, pilot):
        await pilot.press("5")
        await pilot.pause()
        lines = screen_text(app)
        await pilot.press("f")
        await pilot.pause()
        unfolded = app.screen.query_one(HostsView).list.visible_range[2]
    rows, foot = [line for line in lines if line.startswith(("node", "  GPU"))], lines[-2]

    assert [row.split()[0] for row in rows[:4]] == ["node012", "GPU", "GPU", "node000"]
    assert rows[1].split() == ["GPU", "BUSY", "MEMORY", "POWER", "HEAT", "RANKS"]
    assert len(rows) == 20 + 2
    assert unfolded == 20 * (1 + 1 + 8)
    assert "1 of 8 lost" in rows[0]
    assert "rank 100" in rows[2]
    assert "1 GPU with problems" in foot


async def test_the_gpus_of_a_host_with_a_rank_at_fault_are_listed_and_the_cursor_picks_ranks():
    found = builders.hang(16, 13)
    snapshot = on_gpus(16, {13: {"util_ratio": 0.0}}, of=found[0])

    async with watching(live(snapshot, found[1]), size=(120, 40)) as (app, pilot):
        await pilot.press("5")
        await pilot.pause()
        rows = [line for line in screen_text(app) if line.startswith(("node", "  GPU"))]
        view = app.screen.query_one(HostsView)
        picked = []
        for _ in range(3):
            picked.append(view.picked())
            await pilot.press("down")

    assert [row.split()[0] for row in rows] == ["node001", *["GPU"] * 9, "node000"]
    assert picked == [tuple(range(8, 16)), tuple(range(8, 16)), (8,)]


def test_a_viewer_that_comes_late_takes_the_gpu_of_a_blocked_rank_for_one_that_waits():
    """It has not seen how much power work takes, and all GPUs are at 100 %."""
    snapshot = on_gpus(8, {5: {"util_ratio": 0.0}, 6: {"util_ratio": 1.0}}, of=builders.hang()[0])
    works = replace(snapshot.rank(6), gpu={"computes": True})

    assert gpu_cell(snapshot, 5).strip() == "0%"
    assert gpu_cell(snapshot, 6) == "wait"
    assert cell_text(BY_KEY["gpu"], works, CellContext(NOW), 4) == "100%"


def test_instances_of_a_divided_gpu_are_counted_below_it():
    whole = Gpu(2, "GPU-a", None, 30 * GIB, 80 * GIB, mig=True, power_watts=400.0, celsius=60)
    part = Gpu(
        2,
        "MIG-b",
        None,
        29 * GIB,
        40 * GIB,
        parent="GPU-a",
        processes=(GpuProcess(7, 29 * GIB, 3),),
    )

    assert plain(gpu_line(Device("n", whole), 80)).split()[-1] == "divided"
    assert plain(gpu_line(Device("n", part, (3,)), 80, part=1)).split()[:2] == ["MIG", "2.1"]


def test_a_cut_falls_between_words():
    text = "slowed down by heat, held to set clocks"

    assert [clip_words(text, width) for width in (60, 38, 21, 8, 3)] == [
        text, "slowed down by heat, held to set…", "slowed down by heat…", "slowed…", "",
    ]  # fmt: skip


def hang() -> tuple[Snapshot, object]:
    snapshot, verdict = builders.hang()
    return on_gpus(8, {5: {"util_ratio": 0.0, "power_watts": 112.0}}, WAITERS, of=snapshot), verdict


def app_of(found, glyphs=UNICODE):
    return DdtopApp(live(*found), JOB, clock=lambda: NOW, glyphs=glyphs)


@pytest.mark.parametrize(
    ("keys", "size", "glyphs"),
    [
        ([], (80, 24), UNICODE),
        ([], (120, 30), UNICODE),
        (["5"], (120, 30), UNICODE),
        (["5", "t", "t", "t"], (80, 24), ASCII),
    ],
    ids=["ranks-80x24", "ranks-120x30", "hosts-120x30", "hosts-without-colours-and-glyphs-80x24"],
)
def test_picture(snap_compare, keys, size, glyphs):
    assert snap_compare(app_of(hang(), glyphs), terminal_size=size, press=keys)


def test_picture_of_gpus_in_trouble(snap_compare):
    snapshot = on_gpus(8, TROUBLE)
    assert snap_compare(
        app_of((snapshot, builders.calm(snapshot))), terminal_size=(120, 24), press=["5"]
    )
