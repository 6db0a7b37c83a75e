"""The line that shows the position in time."""

import pytest

from ddtop.follow.recording import read_recording
from ddtop.present.strip import axis_line, scrubber_line
from ddtop.present.text import line_width, plain

# -- the line
from tests.follow.journals import written
from tests.jobs import FakeJob
from tests.ui.builders import NOW, SECOND


def line(at_s, width=80, **more):
    span = (NOW - 1500 * SECOND, NOW)
    return plain(scrubber_line(NOW + at_s * SECOND, span, width, **({"recording": True} | more)))


def test_the_line_says_when_how_far_from_the_end_and_how_much_there_is():
    text = line(-12)

    assert text.startswith("recorded 22:13:08  -12 s ─")
    assert text.endswith("─█ 25 min  [ ] 5 s  ( ) ✖  \\ end")
    assert len(text) == 80


def test_the_line_of_a_living_job_knows_a_now():
    assert line(-12, recording=False).startswith("past 22:13:08  -12 s ")
    assert line(-12, recording=False).endswith("\\ now")
    assert "  the end " in line(0)


@pytest.mark.parametrize("width", range(1, 130))
def test_the_line_fits_and_keeps_the_moment_as_long_as_there_is_room(width):
    spans = scrubber_line(NOW, (NOW - 1500 * SECOND, NOW), width, recording=True)

    assert line_width(spans) <= max(width, 26)
    assert plain(spans).startswith("recorded 22:13:20  the end")


def test_the_worst_mark_of_a_column_is_drawn_and_what_is_forgotten_is_not():
    marks = [(NOW - 750 * SECOND, what) for what in ("gone", "critical", "warning")]
    marks += [
        (NOW - 2000 * SECOND, "critical"),
        (NOW - 300 * SECOND, "gone"),
        (NOW - 400 * SECOND, "unheard-of"),
    ]

    text = line(0, marks=marks).partition(" 25 min")[0]

    assert [c for c in text if c in "✖✝▲"] == ["✖", "✝"]


def test_the_moment_at_either_end_is_inside_the_line():
    assert "  -25 min █─" in line(-1500)
    assert "─█ 25 min" in line(0)


def test_a_span_of_no_length_is_drawn():
    assert "█" in plain(scrubber_line(NOW, (NOW, NOW), 80, recording=False))


def test_a_job_of_one_frame_can_be_shown(tmp_path):
    job = FakeJob(1)
    recording = read_recording(written(job, tmp_path / "x.journal"), "x")

    assert recording.last()[0].world_size == 1


@pytest.mark.parametrize(
    ("columns", "mark_s", "drawn"),
    [
        (20, 8, "-13 s ──────✖─── now"),
        (20, 0, "-13 s ✖───────── now"),
        (20, 13, "-13 s ─────────✖ now"),
        (10, 5, "-13 s"),
    ],
    ids=["room for both", "at the beginning", "at the end", "no room for the line"],
)
def test_the_axis_of_a_chart_always_has_its_text_and_its_mark(columns, mark_s, drawn):
    axis = axis_line((0, 13 * 10**9), columns, [(mark_s * 10**9, "critical")])

    assert plain(axis) == drawn
