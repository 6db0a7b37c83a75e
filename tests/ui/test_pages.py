"""The pages: one rank, why, groups, help; and the rows of the table."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtop import thresholds
from ddtop.follow.history import ALL_UP_TO, DEPTH, SeriesHistory, empty_memory
from ddtop.metrics import METRICS
from ddtop.model.facts import RankFacts, State
from ddtop.policy import POLICY
from ddtop.present.findings import finding_lines
from ddtop.present.groups import group_lines, what_moves
from ddtop.present.help_text import help_lines
from ddtop.present.numbers import COLUMNS, LANE, CellContext, rank_table
from ddtop.present.rank import detail_lines
from ddtop.present.text import UNICODE, Page, line_width, plain, rule_line
from ddtop.ui.rows import row_line, row_strip, title_line
from ddtop.ui.style import PALETTES
from ddtop.wire.records import (
    Collective,
    Exit,
    Expectation,
    LastException,
    OpenCall,
    Pace,
    Speed,
    TrainingProgress,
    bytes_of,
)
from tests.ui import builders
from tests.ui.builders import NOW, SECOND
from tests.ui.changed import replace


def texts(lines):
    return [plain(line) for line in lines]


def memory(*values):
    made = empty_memory()
    made.step_ms.extend(values)
    return made


def page_of_one_that(**progress):
    """The page of rank 0 of a healthy job, which reports this."""
    snapshot = builders.healthy()
    rank = replace(snapshot.ranks[0], progress=progress)
    ranks = (rank, *snapshot.ranks[1:])
    return texts(detail_lines(replace(snapshot, ranks=ranks), 0, memory(), 100))


def test_the_page_of_a_culprit_says_where_it_is_and_which_worker_must_deliver_the_next_batch():
    snapshot, _ = builders.hang()
    found = texts(detail_lines(snapshot, 5, memory(), 100))

    assert found[:3] == [
        "rank 5  ✖ culprit  others wait for it",
        "node000  pid 4805  local rank 5",
        "DataLoader data.py:40, for 31 s",
    ]
    assert "  line          /home/ada/data.py:40" in found
    assert (
        "  has waited    31 s, worker pid 4811 must deliver it (state D: waits in the"
        " kernel, cannot be" in found
    )
    assert "  MASTER_ADDR=node000" in found


def test_the_page_of_a_rank_says_how_far_its_training_is():
    told = TrainingProgress(
        "hf-trainer",
        1200,
        10_000,
        phase="checkpoint",
        loss=2.31,
        since_unix_ns=NOW - 12 * SECOND,
        usual_s=35.0,
    )
    speed = Speed("steps", 12.0, 11.9, 12.1, 83.0)
    pace = Pace(speed, start=msgspec.structs.replace(speed, per_s=15.0))
    found = page_of_one_that(training=told, pace=pace)

    assert "  hf-trainer    step 1,200 of 10,000, loss 2.31" in found
    assert "  phase         saving a checkpoint, for 12 s; usually 35 s" in found
    assert "  speed         12 steps/s of training; 15 at its start" in found


def test_the_unit_of_a_speed_cannot_move_the_cursor():
    pace = Pace(Speed("\x1bsteps", 12.0, 11.9, 12.1, 83.0))
    found = page_of_one_that(training=None, pace=pace)

    assert any("steps/s of training" in line for line in found)
    assert all(line.isprintable() for line in found)


def test_the_page_of_a_rank_names_the_expected_region_that_it_is_in():
    region = Expectation("export", NOW - 180 * SECOND, 600.0)
    found = page_of_one_that(training=None, expected=region)

    assert any("expected" in line and "'export', for 3 min; up to 10 min" in line for line in found)


@pytest.mark.parametrize(
    ("line_since", "told"),
    [(None, "31 s"), (31, "31 s"), (7, "7 s on this line, 31 s in load_image")],
    ids=["a journal of before", "it called it there", "a loop"],
)
def test_how_long_a_rank_is_on_its_line_is_told_beside_how_long_it_is_in_the_function(
    line_since, told
):
    snapshot, _ = builders.hang()
    rank = snapshot.ranks[5]
    since = None if line_since is None else snapshot.time_unix_ns - line_since * SECOND
    place = msgspec.structs.replace(rank.reported.place, line_since_unix_ns=since)
    ranks = (*snapshot.ranks[:5], replace(rank, reported={"place": place}), *snapshot.ranks[6:])

    assert f"  there for     {told}" in texts(
        detail_lines(replace(snapshot, ranks=ranks), 5, memory(), 100)
    )


def test_a_wait_in_the_rhythm_of_the_training_is_not_reported():
    snapshot, _ = builders.hang()
    rank = snapshot.ranks[0]
    short = replace(rank, wait=replace(rank.wait, since_unix_ns=snapshot.time_unix_ns - SECOND))
    moving = replace(snapshot, ranks=(short, *snapshot.ranks[1:]))

    assert not any("waits for" in line for line in texts(detail_lines(moving, 0, memory(), 100)))


def test_the_page_of_a_victim_says_for_whom_it_waits_and_what_moves():
    snapshot, _ = builders.hang()
    found = texts(detail_lines(snapshot, 0, memory(196.0, None, 197.0), 120))

    assert "  waits for     rank 5, 31 s, in default_pg" in found
    assert (
        "  open          all_reduce #74893 of default_pg, started [1024, 1024] float32, 4.0 MiB"
        in found
    )
    assert "  step             -  ▇ ▇  196.0 to 197.0" in found
    assert "                      one value a second, 3 s" in found


def test_the_page_of_a_rank_that_is_gone_says_how_it_went():
    snapshot, _ = builders.ended()
    error = LastException("ValueError", "bad batch\x1b[2J", NOW - 41 * SECOND)
    rank = replace(
        snapshot.ranks[2],
        process={
            "exit": Exit(2, 4802, None, 9, True, 0, "pidfd", exception=error, orphans=(4811,))
        },
    )
    ranks = (*snapshot.ranks[:2], rank, snapshot.ranks[3])
    found = texts(detail_lines(replace(snapshot, ranks=ranks), 2, memory(), 100))

    assert "  ended         SIGKILL (out of memory) at 22:12:40, number 1 on its host" in found
    assert "  ValueError: bad batch?[2J" in found
    assert "  outlived by   pid 4811" in found


def test_a_rank_of_which_nothing_is_known_has_a_page_too():
    bare = replace(builders.healthy(1), ranks=(RankFacts(0, State.MISSING),), groups=(), hosts=())

    assert texts(detail_lines(bare, 0, memory(), 60))[:2] == [
        "rank 0  ∅ missing  never seen",
        "never seen",
    ]


@settings(deadline=None, max_examples=40)
@given(st.integers(20, 250), st.integers(0, 7), st.booleans())
def test_no_page_is_wider_than_it_may_be(width, rank, brief):
    snapshot, verdict = builders.hang()
    snapshot = replace(snapshot, notes=("a note " * 30,))
    pages = (
        detail_lines(snapshot, rank, memory(*range(300)), width, UNICODE, brief),
        finding_lines(snapshot, verdict, width),
        group_lines(snapshot, "0", width),
        help_lines(width),
    )

    assert all(line_width(line) <= width for page in pages for line in page)


def test_bytes_of_a_collective_need_sizes_and_a_known_type():
    one = Collective("0", "all_reduce", 1, 1, ((2, 3), (4,)), ("Float",))

    assert bytes_of(one.sizes, one.dtypes) == 40
    assert what_moves(one) == "[2, 3] [4] float, 40 B"
    assert bytes_of((), ()) is None
    assert bytes_of(((2,),), ("Float8_e4m3fn",)) is None


def test_why_has_the_whole_sentence_the_evidence_and_the_next_step():
    found = texts(finding_lines(*builders.hang(), 100))

    assert found[-1] == "  → ddtop explain loader-stuck"
    assert found[: found.index("how it is found")] == [
        "✖ rank 5 has been in the DataLoader (data.py:40 load_image) for 31 s;",
        "  ranks 0-4,6,7 wait for it in all_reduce #74893 of default_pg",
        "",
        "  kind          loader-stuck (critical)",
        "  since         22:12:49, 31 s ago",
        "  at fault      rank 5",
        "  waiting       ranks 0-4,6,7",
        "  in            all_reduce #74893 of default_pg",
        "",
        "evidence",
        "  · worker pid 4811 must deliver the next batch: state D, nfs_wait",
        "  · default_pg: ranks 0-4,6,7 at #74893, rank 5 at #74892",
        (
            "  · rank 5: main.py:12 main, train.py:80 train_step, torch (4 frames), data.py:40"
            " load_image"
        ),
        "",
        "what to do",
        "  → check the file server of /data; the process group times out in 29 min 29 s",
        "",
        "what it means",
        (
            "  The main thread waits for its next batch. The worker process that must deliver it is"
            " dead,"
        ),
        (
            "  stopped, or blocked in a lock or a call that does not return. The rank itself can do"
            " nothing, and"
        ),
        "  its peers wait for it.",
        "",
    ]


def test_help_explains_every_column_from_the_dictionary_of_metrics():
    found = " ".join(texts(help_lines(200)))
    meanings = {one.name: one.meaning for one in METRICS}

    for column in COLUMNS:
        assert meanings[column.metric] in found
    assert len(meanings) == len(METRICS)


def test_an_old_report_is_shown_as_old_and_a_tag_costs_no_column():
    rank = replace(builders.healthy_rank(0), agent={"report_age_s": 12.0})
    shape, context = rank_table(120, 8, 7, {LANE}), CellContext(NOW)
    line = row_line(rank, shape, context, tagged=True, old=False)

    assert plain(line).startswith("   0*· running")
    assert line_width(line) == shape.total
    assert {style for _, style in line[4::2]} >= {"old", "warning"}
    assert ("  12s", "warning") in line


@pytest.mark.parametrize(("age_s", "limit_s", "marked"), [(3, 3.5, 0), (4, 3.5, 1), (4, 20.0, 0)])
def test_a_report_is_old_after_the_time_that_this_viewer_has_chosen(
    monkeypatch, age_s, limit_s, marked
):
    monkeypatch.setattr(thresholds, "_chosen", POLICY.with_limits({"report_silent_s": limit_s}))
    rank = replace(builders.healthy_rank(0), agent={"report_age_s": float(age_s)})
    line = row_line(rank, rank_table(120, 8, 7, {LANE}), CellContext(NOW), tagged=False, old=False)

    assert line.count((f" {age_s}.0s", "warning")) == marked


def test_a_full_queue_of_batches_is_quiet_and_an_empty_one_is_not():
    def loader(depth):
        report = replace(builders.healthy_rank(0).loader.report, depth=depth, capacity=8)
        rank = replace(builders.healthy_rank(0), loader={"report": report})
        line = row_line(
            rank, rank_table(80, 8, 7, {LANE}), CellContext(NOW), tagged=False, old=False
        )
        return next((text, style) for text, style in line if text.endswith("/8"))

    assert loader(8) == ("8/8", "dim")
    assert loader(0) == ("   0/8", "warning")


@pytest.mark.parametrize("palette", PALETTES.values(), ids=PALETTES.keys())
@pytest.mark.parametrize("width", [40, 80, 200])
def test_every_cell_of_a_row_has_a_style_and_the_row_its_width(palette, width):
    """A segment without a style ends the app where NO_COLOR is set."""
    snapshot, _ = builders.hang()
    shape = rank_table(width, 8, 7)
    for rank in snapshot.ranks[4:6]:
        line = row_line(rank, shape, CellContext(NOW), tagged=False, old=False)
        strip = row_strip(line, width, palette, at_fault=rank.rank == 5, selected=True)
        assert strip.cell_length == width
        assert all(segment.style is not None for segment in strip)


def test_the_column_that_rows_are_sorted_by_is_marked_without_colour():
    shape = rank_table(80, 8, 7)

    assert ("↓FOR", "sorted") in title_line(shape, "for", "↓")
    for column in shape.fields:
        line = title_line(shape, column.key, "↓")
        assert line_width(line) == shape.total
        # Between two titles the arrow would belong to both.
        assert shape.at(plain(line).index("↓")) is column


def test_a_rule_is_as_wide_as_the_screen_with_notes_and_without():
    assert all(
        line_width(rule_line(width, "─", "rows 1-17 of 512", "every 2 s")) == width
        for width in range(5, 90)
    )
    assert plain(rule_line(40, "─", "rows 1-17 of 512")) == "─" * 21 + " rows 1-17 of 512 ─"


def test_a_page_never_has_two_empty_lines_in_a_row():
    page = Page(40)
    page.heading("a")
    page.blank()
    page.blank()
    page.heading("b")

    assert texts(page.lines) == ["a", "", "b"]


def test_history_takes_one_value_a_second_and_is_bounded():
    history, snapshot = SeriesHistory(), builders.healthy(2)
    for tick in range(3 * DEPTH):
        history.record(replace(snapshot, time_unix_ns=NOW + tick * SECOND // 2))

    assert len(history.memory_of(0).step_ms) == DEPTH
    history.record(replace(snapshot, run="r2", time_unix_ns=NOW))
    assert len(history.memory_of(0).step_ms) == 1


def test_history_of_a_huge_job_is_kept_only_for_ranks_that_were_looked_at():
    history, snapshot = SeriesHistory(), builders.healthy(ALL_UP_TO + 1)
    history.watch(7)
    history.record(snapshot)

    assert list(history.memory_of(7).step_ms) == [snapshot.rank(7).progress.step_ms]
    assert not history.memory_of(8).step_ms


def test_a_collective_past_its_timeout_says_so():
    snapshot, _ = builders.hang()
    late = replace(snapshot, time_unix_ns=NOW + 3600 * SECOND)

    assert any("and has passed" in text for text in texts(detail_lines(late, 0, memory(), 100)))


def test_open_calls_are_listed_with_their_tag():
    snapshot = builders.healthy(1)
    rank = replace(
        snapshot.ranks[0], comm={"open_calls": (OpenCall("recv", NOW - 5 * SECOND, 0, 7),)}
    )

    found = texts(detail_lines(replace(snapshot, ranks=(rank,)), 0, memory(), 100))
    assert "  in call       recv from rank 0, tag 7, 5 s" in found
