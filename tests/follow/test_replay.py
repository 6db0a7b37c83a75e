"""A journal on the screen, and moving through time with keys, at the usual sizes of terminals."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from ddtop import journal
from ddtop.follow import recording as replay
from ddtop.follow.look import Look
from ddtop.follow.recording import ReplaySource, read_recording
from ddtop.present.text import ASCII, UNICODE
from ddtop.ui.app import DdtopApp
from ddtop.ui.session import Session
from ddtop.wire import frames
from ddtop.wire.records import Stacks, ThreadStack
from tests.follow.journals import written
from tests.follow.taped import dies, hangs, in_order
from tests.jobs import unix_ns
from tests.ui import builders
from tests.ui.builders import JOB, NOW, SECOND, FakeSource
from tests.ui.screens import screen_text

DEADLINE_S = 15.0


@pytest.fixture
def dead(tmp_path):
    """Rank 3 is killed after 30 s, the launcher ends the others 20 s later."""
    job = dies()
    stacks = Stacks(
        "a", 0, job.ranks[0].pid, unix_ns(40), "agent", (ThreadStack((), "MainThread", main=True),)
    )
    job.say(stacks, job.ranks[0], at_s=40.0)
    return written(job, tmp_path / "train-47.journal")


@asynccontextmanager
async def replaying(path, size=(80, 24), glyphs=UNICODE, **more):
    source = ReplaySource(path, "train-47", **more)
    app = DdtopApp(source, "train-47", glyphs=glyphs, readonly=True)
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.session.shown.snapshot is not None)
        yield app, pilot


async def until(pilot, question):
    end = time.monotonic() + DEADLINE_S
    while not question():
        assert time.monotonic() < end, screen_text(pilot.app)
        pilot.app.tick()
        await pilot.pause(0.02)


async def press(app, pilot, *keys):
    """Press, and wait until the screen has reached that moment."""
    await pilot.press(*keys)
    await until(pilot, lambda: app._arrival is None)
    await pilot.pause()


def scrubber(app):
    return next(line for line in screen_text(app) if line.startswith(("recorded", "past")))


def seconds(app):
    return (app.session.shown.snapshot.time_unix_ns - unix_ns(0)) / 1e9


# -- a journal


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_an_ended_job_opens_at_its_end_with_verdict_and_stacks(dead, size):
    async with replaying(dead, size) as (app, _):
        lines = screen_text(app)
        snapshot = app.session.shown.snapshot

    assert "ENDED" in lines[0]
    assert lines[4].startswith("✖ rank 3")
    assert [line for line in lines if line.startswith("recorded") and "the end" in line]
    assert snapshot.ended.first_rank == 3
    assert snapshot.ranks[0].dump.stacks.request == "a"
    assert all(len(line) <= size[0] for line in lines)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_the_keys_go_back_and_forth_in_time(dead, size):
    async with replaying(dead, size) as (app, pilot):
        end = seconds(app)
        await press(app, pilot, "left_square_bracket")
        assert seconds(app) == end - 5
        assert "-5 s" in scrubber(app)
        await press(
            app, pilot, "left_square_bracket", "left_square_bracket", "right_square_bracket"
        )
        assert seconds(app) == end - 10
        assert "NO PROGRESS" in screen_text(app)[0]
        await press(app, pilot, "left_curly_bracket")
        assert seconds(app) == 1.0
        assert "rank 3" not in screen_text(app)[3]
        await press(app, pilot, "left_square_bracket")
        assert seconds(app) == 1.0
        await press(app, pilot, "right_curly_bracket")
        assert (seconds(app), app.session._at_unix_ns) == (end, None)
        await press(app, pilot, "left_square_bracket", "backslash")
        assert seconds(app) == end


async def test_time_is_travelled_on_every_screen(dead):
    async with replaying(dead) as (app, pilot):
        for key in ("enter", "e", "question_mark"):
            await pilot.press(key)
            await press(app, pilot, "left_square_bracket")
            assert "-5 s" in scrubber(app)
            await press(app, pilot, "backslash")
            assert "the end" in scrubber(app)
            await pilot.press("escape")


async def test_a_bracket_in_the_filter_is_a_bracket(dead):
    async with replaying(dead) as (app, pilot):
        end = seconds(app)
        await pilot.press("slash", "left_square_bracket", "backslash")
        await pilot.pause(0.1)

        assert app.screen.input.value == "[\\"
        assert seconds(app) == end


async def test_the_sparklines_are_not_those_of_another_moment(dead):
    async with replaying(dead) as (app, pilot):
        at_end = list(app.session.history.memory_of(0).rss_bytes)
        await press(app, pilot, "left_square_bracket", "left_square_bracket")
        before = list(app.session.history.memory_of(0).rss_bytes)

        assert len(before) == pytest.approx(len(at_end) - 9, abs=2)
        assert at_end[: len(before)] == before
        assert not app.session._history.memory_of(0).step_ms


async def test_without_colours_and_without_unicode_nothing_is_lost(dead, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    async with replaying(dead, glyphs=ASCII) as (app, pilot):
        await press(app, pilot, "left_square_bracket")
        text = "\n".join(screen_text(app))

    assert text.isascii()
    assert "recorded" in text
    assert "X" in scrubber_of(text)
    assert "+" in scrubber_of(text)


def scrubber_of(text):
    return next(line for line in text.splitlines() if line.startswith("recorded"))


async def test_who_reads_is_reported_and_the_first_picture_does_not_wait(dead, monkeypatch):
    """64 MiB take seconds to read."""
    go_on, whole = threading.Event(), replay.read_recording

    def slowly(path, name, *, growing, progress):
        progress(0.4)
        assert go_on.wait(DEADLINE_S)
        return whole(path, name, growing=growing, progress=progress)

    monkeypatch.setattr(replay, "read_recording", slowly)
    app = DdtopApp(ReplaySource(dead, "train-47"), "train-47", glyphs=UNICODE)
    async with app.run_test(size=(80, 24)) as pilot:
        try:
            await until(pilot, lambda: "40%" in " ".join(screen_text(app)[:6]))
            assert "reading" in " ".join(screen_text(app)[:6])
        finally:
            go_on.set()
        await until(pilot, lambda: app.session.shown.snapshot is not None)


async def test_who_quits_does_not_wait_for_the_rest_of_a_large_journal(dead, monkeypatch):
    reached, ended, whole = threading.Event(), threading.Event(), replay.read_recording
    monkeypatch.setattr(replay, "NOTICES", 1000)
    go_on = threading.Event()

    def watched(path, name, *, growing, progress):
        def slowly(ratio):
            reached.set()
            assert go_on.wait(DEADLINE_S)
            progress(ratio)

        try:
            return whole(path, name, growing=growing, progress=slowly)
        except journal.JournalError:
            ended.set()
            raise

    monkeypatch.setattr(replay, "read_recording", watched)
    task = asyncio.create_task(ReplaySource(dead, "train-47").run())
    await asyncio.to_thread(reached.wait, DEADLINE_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go_on.set()

    assert await asyncio.to_thread(ended.wait, DEADLINE_S)


async def test_what_is_no_journal_is_reported_on_the_screen(tmp_path):
    (tmp_path / "x.journal").write_bytes(b"PK a zip")
    app = DdtopApp(ReplaySource(tmp_path / "x.journal", "x"), "x", glyphs=UNICODE)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(
            pilot, lambda: "isnotaddtopjournal" in "".join(screen_text(app)[:8]).replace(" ", "")
        )


async def test_damage_is_named_on_the_screen_at_the_end_and_on_the_way(dead):
    content = bytearray(dead.read_bytes())
    content[len(content) * 3 // 4] ^= 1
    dead.write_bytes(content)
    async with replaying(dead) as (app, pilot):
        assert "the journal is damaged" in screen_text(app)[3]
        assert not app.session.old
        await press(app, pilot, "left_square_bracket")
        assert app.session.shown.snapshot.notes[0].startswith(
            "the journal is damaged: what comes before the damage"
        )


async def test_a_journal_without_an_end_says_that_its_relay_was_killed(tmp_path):
    async with replaying(written(hangs(), tmp_path / "x.journal")) as (app, _):
        text = " ".join(screen_text(app)[3:5])

    assert "the journal stops before the end of the job: its relay was killed" in text


async def test_the_journal_of_a_living_job_says_that_it_is(tmp_path):
    path = written(hangs(), tmp_path / "x.journal")
    path.write_bytes(path.read_bytes()[:-3])
    async with replaying(path, live=lambda: True) as (app, _):
        assert screen_text(app)[3] == "the job is live: this is what its journal has so far"


async def test_a_recording_cannot_be_asked_nor_signalled(dead):
    source = ReplaySource(dead, "train-47")

    assert (await source.ask_stacks((0,))).startswith("this is a recording")
    assert (await source.send_signal(0, 9)) == "this is a recording: no signal was sent"


# -- reading


def test_a_journal_without_a_record_has_nothing_to_show(tmp_path):
    journal.write(tmp_path / "x.journal", [b"not a frame"])

    with pytest.raises(
        journal.JournalError, match=r"nothing to show in .*; 1 record cannot be read"
    ):
        read_recording(tmp_path / "x.journal", "x")


def test_records_of_another_version_are_reported_and_the_others_shown(tmp_path):
    job = hangs()
    journal.write(
        tmp_path / "x.journal",
        [data for _, data in in_order(job)] + [bytes([0x9B, frames.SCHEMA_MAJOR + 1, *10 * [0]])],
    )

    recording = read_recording(tmp_path / "x.journal", "x")

    assert f"the other side speaks schema {frames.SCHEMA_MAJOR + 1}" in recording.damage
    assert recording.last()[0].world_size == 4


def test_of_a_journal_that_is_too_large_the_end_is_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(replay, "REPLAY_BYTES", 200_000)

    recording = read_recording(written(hangs(), tmp_path / "x.journal"), "x")

    assert "too large to be shown as a whole" in recording.damage
    assert recording.tape.span[1] == unix_ns(100)


def test_what_a_living_relay_is_writing_is_no_damage(tmp_path):
    path = written(hangs(), tmp_path / "x.journal")
    path.write_bytes(path.read_bytes()[:-3])

    assert "cut off" in read_recording(path, "x").damage
    assert read_recording(path, "x", growing=True).damage is None


def test_both_halves_of_a_black_box_are_one_recording(tmp_path):
    """Across the border between the halves the verdict is the one that was seen live."""
    job = hangs()
    whole = [data for _, data in in_order(job)]
    facts = [data for data in whole if frames.open_envelope(data).kind in ("Hello", "Groups")]
    box = journal.Journal(tmp_path / "x.journal", 300_000, lambda: facts)
    for start in range(0, len(whole), 10):
        box.append(whole[start : start + 10])
    box.close()
    assert journal.older_half(tmp_path / "x.journal").exists()

    recording = read_recording(tmp_path / "x.journal", "x")

    assert recording.damage is None
    assert recording.last() == read_recording(written(job, tmp_path / "y.journal"), "x").last()


def test_when_the_hang_began_and_ranks_ended_is_marked(dead):
    marks = [
        (round((at - unix_ns(0)) / 1e9), what) for at, what in read_recording(dead, "x").tape.marks
    ]

    assert (30, "gone") in marks
    assert (30, "critical") in marks


# -- the session


def travelling(span=(NOW - 100 * SECOND, NOW)):
    found = FakeSource(replace(Look(*builders.hang()), span=span))
    found.went = []
    found.travel = found.went.append
    return found


def test_from_now_one_goes_back_and_behind_the_end_is_now():
    source = travelling()
    session = Session(source, JOB)
    for step in (-5, -5, 5, 60, -60, -60):
        session.travel(step)

    assert [None if at is None else (at - NOW) // SECOND for at in source.went] == [
        -5,
        -10,
        -5,
        None,
        -60,
        -100,
    ]


def test_with_nothing_recorded_the_foot_says_so():
    source = travelling(None)
    session = Session(source, JOB)
    session.travel(-5)

    assert source.went == []
    assert "nothing has been recorded" in session.notice


def test_who_travels_lets_go_of_the_frozen_picture():
    session = Session(travelling(), JOB)
    session.freeze()
    session.travel(-5)

    assert not session.frozen


def test_looks_of_the_past_leave_the_sparklines_alone():
    source = travelling()
    session = Session(source, JOB)
    before = list(session.history.memory_of(0).rss_bytes)
    snapshot = replace(source.shown.snapshot, time_unix_ns=NOW - 50 * SECOND)
    source.shown = replace(source.shown, snapshot=snapshot, travelled=True)
    session.refresh()
    source.shown = replace(
        source.shown, snapshot=replace(snapshot, time_unix_ns=NOW + SECOND), travelled=False
    )
    session.refresh()

    assert len(session.history.memory_of(0).rss_bytes) == len(before) + 1
