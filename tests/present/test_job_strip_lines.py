"""The job strip as lines: what fits into each height and width."""

import dataclasses

import pytest

from ddtop.follow.look import Look
from ddtop.policy import POLICY
from ddtop.present.events import EventLog, rows_of
from ddtop.present.findings import header_line
from ddtop.present.panels import panel_lines
from ddtop.present.scene import Scene
from ddtop.present.text import ASCII, UNICODE, line_width, plain
from ddtop.wire.records import Pace, Speed, TrainingProgress
from tests.ui import builders, gpus, lived
from tests.ui.changed import replace


def facts(snapshot=None, verdict=None):
    snapshot = snapshot or builders.healthy()
    verdict, timeline = verdict or builders.calm(snapshot), EventLog(POLICY)
    timeline.take(Look(snapshot, verdict))
    history, rows = lived.history_of(snapshot), rows_of(timeline.events)
    return Scene(snapshot, history, verdict, rows, rows=len(snapshot.ranks))


def strip_lines(scene, width, height, glyphs=UNICODE):
    return panel_lines(dataclasses.replace(scene, glyphs=glyphs), width, height)


def texts(lines):
    return [plain(line) for line in lines]


def test_one_line_tells_the_speed_first_and_then_how_it_was():
    (line,) = texts(strip_lines(facts(), 80, 1, UNICODE))
    assert line.startswith("speed 4.6 it/s")
    assert "% slower than at 21:59" in line
    assert "step 220 ms, max 226" in line


def test_a_chart_has_its_value_its_scale_from_zero_and_its_axis_and_the_last_events_follow():
    lines = texts(strip_lines(facts(), 80, 14, UNICODE))
    assert lines[0].startswith("speed 4.6 it/s · step 22")
    assert lines[1].startswith("6 it/s┤")
    foot = next(at for at, line in enumerate(lines) if line.startswith("     0┤"))
    assert lines[foot + 1].startswith("      └-10 min ──")
    assert lines[foot + 1].endswith("now")
    assert len(lines[foot]) == len(lines[foot + 1]) == 80
    assert any("ranks 0-7 of 8 joined" in line for line in lines)


def test_wide_terminals_have_charts_also_of_the_gpus():
    lines = texts(strip_lines(facts(gpus.on_gpus()), 133, 36, UNICODE))
    told = "\n".join(lines)
    assert "GPU work 96%" in told
    assert "GPU power 4.9 kW" in told
    assert "640 GiB┤" in told
    assert "6 kW┤" in told


def test_gpus_that_only_wait_are_counted_where_their_share_would_look_like_work():
    waiters = frozenset({0, 1, 2, 3, 4, 6, 7})
    snapshot = gpus.on_gpus(8, {5: {"util_ratio": 0.0}}, waits=waiters)
    told = facts(snapshot)

    assert "GPU work 7 wait, 1 idle" in "\n".join(texts(strip_lines(told, 80, 24, UNICODE)))


@pytest.fixture(scope="module")
def of_gpus():
    return facts(gpus.on_gpus())


@pytest.mark.parametrize("width", [20, 40, 79, 80, 109, 110, 133, 250])
@pytest.mark.parametrize("height", [0, 1, 2, 3, 7, 20, 40])
@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
def test_the_strip_never_leaves_its_place(of_gpus, width, height, glyphs):
    lines = strip_lines(of_gpus, width, height, glyphs)
    assert len(lines) <= height
    assert all(line_width(line) <= width for line in lines)
    if glyphs is ASCII:
        assert all(plain(line).isascii() for line in lines)


def test_in_a_hang_nothing_of_it_draws_the_eye():
    snapshot, verdict = builders.hang()
    for height in (1, 8, 30):
        lines = strip_lines(facts(snapshot, verdict), 120, height, UNICODE)
        styles = {style for line in lines for text, style in line if text.strip()}
        assert styles <= {"dim", "bar", "rule", "heading", "culprit", "blocked", "critical", ""}
        assert "slower" not in "\n".join(texts(lines))


def test_a_job_that_has_just_stopped_has_no_speed_left():
    snapshot, verdict = builders.hang()
    since = builders.NOW - 3 * builders.SECOND
    stopped = replace(snapshot, still_since_unix_ns=since)
    lines = texts(strip_lines(facts(stopped, verdict), 80, 20, UNICODE))
    assert any(line.split()[:3] == ["speed", "0.0", "it/s"] for line in lines)


def test_a_job_without_a_number_has_no_lines():
    nothing = Scene(builders.starting_up()[0], lived.JobHistory(POLICY))
    assert strip_lines(nothing, 80, 8, UNICODE) == []


def test_the_throughput_is_reported_against_the_last_run_of_that_name():
    now = Speed("steps", 4.5, 4.4, 4.6, 225.0)
    before = Speed("steps", 7.5, 7.4, 7.6, 133.0)
    snapshot = builders.healthy()
    ranks = tuple(
        replace(rank, progress=replace(rank.progress, pace=Pace(now))) for rank in snapshot.ranks
    )

    def told(last_run):
        changed = replace(snapshot, ranks=ranks, last_run=last_run)
        return "\n".join(texts(strip_lines(facts(changed), 200, 10, UNICODE)))

    assert "40 % below the last run" in told(before)
    assert "the last run" not in told(None)
    # Samples and steps cannot be compared.
    assert "the last run" not in told(replace(before, unit="samples"))


def test_in_eighty_columns_the_progress_still_says_the_loss_and_the_end_and_says_it_once():
    told = TrainingProgress(
        "hf-trainer",
        step=270,
        total_steps=100_000,
        epoch=4.2,
        total_epochs=1563,
        phase="validate",
        samples_per_s=56.9,
        loss=4.16,
        eta_s=17_160.0,
    )
    snapshot = replace(builders.healthy(), progress=told)
    lines = texts(strip_lines(facts(snapshot), 80, 20, UNICODE))

    assert "0.27% of 100,000 steps  validating  done at" in lines[0]
    assert sum(line.startswith("loss 4.16") for line in lines) == 1
    assert sum("4.16" in line.split() for line in lines) == 1
    assert sum("56.9 samples/s" in line for line in lines) == 1
    line = " ".join(texts(strip_lines(facts(snapshot), 80, 5, UNICODE)))
    assert "56.9 samples/s" in line


def test_the_header_and_the_strip_say_the_same_speed_between_two_points_of_the_history():
    shown = facts()
    (line,) = texts(strip_lines(shown, 80, 1, UNICODE))
    later = replace(shown.snapshot, time_unix_ns=builders.NOW + builders.SECOND)
    per_s = shown.history.now(later.time_unix_ns).iterations_per_s
    assert line.split()[1:3] == plain(header_line(later, 120, per_s=per_s)).split()[-3:-1]


def test_findings_are_marked_on_the_axis_where_they_began():
    snapshot, verdict = builders.hang()
    lines = texts(strip_lines(facts(snapshot, verdict), 120, 24, UNICODE))
    (axis,) = [line for line in lines if "└-10 min ─" in line]
    # 21 s of ten minutes ago.
    assert axis.index("✖") == axis.index("now") - 2


@pytest.mark.parametrize("minutes", [0.35, 0.6, 1.6, 2.4, 9.1])
def test_the_curve_of_a_job_of_any_age_has_the_full_width(minutes):
    snapshot = builders.healthy()
    young = Scene(snapshot, lived.history_of(snapshot, minutes=minutes))
    lines = texts(strip_lines(young, 120, 12, UNICODE))
    foot = next(line.partition("┤")[2].partition(" │ ")[0] for line in lines if "0┤" in line)
    assert len(foot) >= 48
    assert foot.count(" ") <= len(foot) // 12


def test_charts_have_room_for_their_height_or_are_left_out():
    """Six charts of two rows each told nothing."""
    for height in range(6, 40):
        lines = texts(strip_lines(facts(gpus.on_gpus()), 120, height, UNICODE))
        for at, line in enumerate(lines):
            if "└-" in line:
                assert all("┤" in above for above in lines[at - 3 : at])
