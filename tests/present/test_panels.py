"""The panels below the ranks: which ones a finding has, and what they say of the culprit."""

import dataclasses

import pytest

from ddtop.diagnosis.kinds import Kind
from ddtop.follow.source_lines import Excerpt
from ddtop.model.facts import Late, PeerWait
from ddtop.policy import POLICY
from ddtop.present.culprit import (
    gpu_panel,
    memory_panel,
    queue_panel,
    step_panel,
    waits_panel,
    where_panel,
)
from ddtop.present.panels import DEFAULT, EVENTS, LANES, OF_KIND, panel_lines, panels_for
from ddtop.present.scene import Scene
from ddtop.present.stacks import merged_of
from ddtop.present.text import ASCII, line_width, plain
from ddtop.wire.records import ProcessLoad, StackFrame, Stacks, ThreadStack
from tests.ui import builders, gpus, lived
from tests.ui.builders import NOW, SECOND
from tests.ui.changed import replace

GIB = 1 << 30


def texts(lines):
    return [plain(line) for line in lines]


def scene_of(snapshot, verdict, **more):
    memories = lived.series_of(snapshot)
    rows = len(snapshot.ranks)
    return Scene(snapshot, lived.JobHistory(POLICY), verdict, memories=memories, rows=rows, **more)


def frame(function, line):
    return StackFrame(function, "/home/ada/train.py", line)


def with_stacks(snapshot, verdict):
    """Rank 5 is at another line than the others."""
    ranks, taken = [], []
    for rank in snapshot.ranks:
        inner = frame("load_image", 40) if rank.rank == 5 else frame("train_step", 88)
        frames = (inner, frame("main", 12))
        thread = ThreadStack(frames, "MainThread", 1, True)
        stacks = Stacks("r1", rank.rank, rank.pid, NOW - SECOND, "agent", (thread,))
        ranks.append(replace(rank, dump={"stacks": stacks}))
        taken.append(stacks)
    snapshot = replace(snapshot, ranks=tuple(ranks))
    return snapshot, merged_of(taken, verdict, snapshot)


def read(file, line, started):
    del file, started
    return Excerpt(line - 1, ("before()", f"here({line})", "after()"))


def test_every_kind_has_panels_and_a_new_one_needs_no_row():
    snapshot, verdict = builders.hang()
    for kind in Kind:
        finding = replace(verdict.findings[0], kind=kind)
        shown = panels_for(scene_of(snapshot, replace(verdict, findings=(finding,))))
        assert shown[0] is LANES
        assert EVENTS in shown
        assert len(set(shown)) == len(shown)
    plugged = replace(verdict.findings[0], kind=Kind.of_plugin("my-own", Kind.STRAGGLER.what))
    shown = panels_for(scene_of(snapshot, replace(verdict, findings=(plugged,))))
    assert shown[1 : 1 + len(DEFAULT)] == DEFAULT
    assert set(OF_KIND) <= set(Kind)


def test_the_stack_of_the_culprit_stands_first_with_its_source_and_then_the_others():
    snapshot, verdict = builders.hang()
    snapshot, merged = with_stacks(snapshot, verdict)
    scene = scene_of(snapshot, verdict, merged=merged, read=read)
    assert texts(where_panel(scene, 70, 16)) == [
        "── where rank 5 is " + "─" * 51,
        " train.py:12 main › train.py:40 load_image",
        "  39 │ before()",
        "→ 40 │ here(40)",
        "  41 │ after()",
        "ranks 0-4,6,7:",
        " train.py:12 main › train.py:88 train_step",
        "  87 │ before()",
        "→ 88 │ here(88)",
        "  89 │ after()",
    ]
    # With less room the lines around go first, then the others; never the arrow.
    assert "→ 88 │ here(88)" in texts(where_panel(scene, 70, 7))
    assert texts(where_panel(scene, 70, 5))[-2:] == ["→ 40 │ here(40)", "  41 │ after()"]
    assert texts(where_panel(scene, 70, 3))[-1] == "→ 40 │ here(40)"


def test_without_stacks_its_place_is_told_and_of_a_rank_that_is_gone_its_last_one():
    scene = scene_of(*builders.hang(), read=read)
    assert texts(where_panel(scene, 60, 9))[1:3] == [" in load_image data.py:40", "  39 │ before()"]
    ended = scene_of(*builders.ended())
    assert texts(where_panel(ended, 60, 9)) == [
        "── where rank 2 was " + "─" * 40,
        " it was last in train_step train.py:88",
    ]


def test_who_waits_is_told_in_waves_to_the_end_of_the_chain():
    snapshot, verdict = builders.hang(16, 5)
    ranks = list(snapshot.ranks)
    for number in (0, 1, 2):
        ranks[number] = replace(ranks[number], wait=replace(ranks[number].wait, behind=(3,)))
    waits = tuple(
        replace(wait, group="7", behind=(3,)) if wait.rank in (0, 1, 2) else wait
        for wait in snapshot.waits
    )
    snapshot = replace(snapshot, ranks=tuple(ranks), waits=waits)
    assert texts(waits_panel(scene_of(snapshot, verdict), 78, 16))[1:] == [
        "✖ rank 5",
        " ◀━ 12 ranks in all_reduce #74893 of default_pg",
        "   ◀━ ranks 0-2 behind those",
        " rank 5 waits for its loader worker pid 4811, state D",
    ]
    narrow = waits_panel(scene_of(snapshot, verdict, glyphs=ASCII), 30, 16)
    assert all(line_width(line) <= 30 for line in narrow)
    assert "state D" in " ".join(texts(narrow))


def test_who_waits_in_a_call_for_the_culprit_is_told():
    snapshot, verdict = builders.starting_up()
    waits = (PeerWait(0, "recv", 3, None, NOW - 9 * SECOND, (3,)),)
    lines = texts(waits_panel(scene_of(replace(snapshot, peer_waits=waits), verdict), 60, 9))
    assert lines[1:] == ["✖ rank 3", " ◀━ rank 0 in recv"]


def test_one_step_of_a_straggler_has_the_numbers_of_its_sentence():
    snapshot, verdict = builders.straggling()
    late = Late("0", (3,), (0, 1, 2, 4, 5, 6, 7), 70.0, 241.0, 64, 0.9, NOW)
    ranks = tuple(replace(rank, late=late) if rank.rank == 3 else rank for rank in snapshot.ranks)
    scene = scene_of(replace(snapshot, ranks=ranks), verdict)
    head, last, others = texts(step_panel(scene, 70, 9))[:3]
    assert head.startswith("── one step of 241 ms, median of the last 64 steps ─")
    assert last.startswith("✖ rank 3")
    assert last.endswith("█ last")
    assert others.endswith("▒ wait 70.0 ms")
    assert others.count("▒") == round((others.count("█") + others.count("▒")) * 70 / 241)
    assert step_panel(scene_of(*builders.hang()), 70, 9) == []
    few = dataclasses.replace(late, waiters=(0, 1))
    ranks = tuple(replace(rank, late=few) if rank.rank == 3 else rank for rank in snapshot.ranks)
    scene = scene_of(replace(snapshot, ranks=ranks), verdict)
    assert texts(step_panel(scene, 70, 9))[3] == "  5 ranks wait behind those"


def test_memory_is_drawn_up_to_the_limit_of_the_cgroup_once_it_comes_near():
    snapshot, verdict = builders.hang()
    ranks = list(snapshot.ranks)
    load = ProcessLoad(memory_limit_bytes=4 * GIB)
    report = replace(ranks[5].process.report, load=load)
    ranks[5] = replace(ranks[5], process={"report": report, "rss_bytes": 3 * GIB})
    lines = texts(memory_panel(scene_of(replace(snapshot, ranks=tuple(ranks)), verdict), 60, 8))
    assert lines[0] == "memory of rank 5 3.0 GiB of 4.0 GiB, its limit"
    assert lines[1].startswith("4 GiB┤")
    assert lines[-2].startswith("    0┤")
    assert "✖" not in lines[-1]


def test_the_batches_that_lie_ready_are_drawn_for_a_rank_with_a_loader():
    lines = texts(queue_panel(scene_of(*builders.hang()), 60, 6))
    assert lines[0] == "batches ready for rank 5 0 of 8"
    assert lines[1].startswith("8┤")
    assert queue_panel(scene_of(*builders.starting_up()), 60, 6) == []


def test_the_gpu_of_the_culprit_stands_beside_the_median_of_the_others():
    snapshot = gpus.on_gpus(8, {5: {"power_watts": 113.0, "throttle": ("hw_thermal",)}})
    _, verdict = builders.hang()
    lines = texts(gpu_panel(scene_of(snapshot, verdict), 60, 9))
    assert any(line.split() == ["power", "113", "W", "612", "W"] for line in lines)
    assert "slowed down by hw_thermal" in lines[-1]
    assert gpu_panel(scene_of(*builders.hang()), 60, 9) == []


@pytest.mark.parametrize("width", [20, 40, 80, 120, 133])
@pytest.mark.parametrize("glyphs", [None, ASCII])
def test_no_panel_leaves_its_place(width, glyphs):
    snapshot, verdict = builders.hang(64, 5)
    snapshot, merged = with_stacks(snapshot, verdict)
    scene = dataclasses.replace(scene_of(snapshot, verdict, merged=merged, read=read), rows=4)
    scene = scene if glyphs is None else dataclasses.replace(scene, glyphs=glyphs)
    for height in range(40):
        lines = panel_lines(scene, width, height)
        assert len(lines) <= height
        assert all(line_width(line) <= width for line in lines)
        if glyphs is ASCII:
            assert all(plain(line).isascii() for line in lines)


@pytest.mark.parametrize("height", range(22, 33))
def test_a_hang_of_four_ranks_leaves_few_rows_empty(height):
    snapshot, verdict = builders.hang(4, 2)
    scene = scene_of(snapshot, verdict, read=read)
    scene = dataclasses.replace(scene, history=lived.history_of(snapshot))
    lines = texts(panel_lines(scene, 120, height))
    while lines and not lines[-1].strip(" │"):
        lines.pop()
    assert height - len(lines) <= 3
