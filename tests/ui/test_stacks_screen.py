"""The screen of stacks: it opens at once, fills as the answers come, and says what is missing."""

from dataclasses import replace

import pytest

from ddtop.follow.look import Dump, Look
from ddtop.present.text import ASCII, UNICODE
from ddtop.ui.app import DdtopApp
from ddtop.ui.screens.main import MainScreen
from ddtop.ui.screens.stacks import StacksScreen
from tests.ui import builders, dumps
from tests.ui.builders import JOB, NOW, SECOND, live
from tests.ui.screens import screen_text, show, watching

HANG, VERDICT = builders.hang()


def answered(ranks=None, number=1, expected=8, refused=None, snapshot=HANG):
    """The source's content after these ranks have answered the viewer's request of that number."""
    found = dumps.with_stacks(snapshot, ranks, f"r{number}")
    count = 8 if ranks is None else len(ranks)
    return Look(found, VERDICT, dump=Dump(f"r{number}", NOW, expected, count, refused))


async def test_a_key_opens_it_before_the_first_answer():
    source = live(HANG, VERDICT)
    async with watching(source) as (app, pilot):
        await pilot.press("D")
        await pilot.pause()

        assert isinstance(app.screen, StacksScreen)
        assert source.asked == [()]
        assert screen_text(app)[2] == "asking 8 ranks, 0 answered so far ..."


async def test_answers_are_merged_as_they_come():
    async with watching(live(HANG, VERDICT)) as (app, pilot):
        await pilot.press("D")
        await show(app, pilot, answered((0, 1, 5)))
        some = screen_text(app)
        await show(app, pilot, answered())

        assert some[2] == "asking 8 ranks, 3 answered so far ..."
        assert some[3].startswith("├─ ✖ 1 rank [5]")
        assert "└─ 2 ranks [0,1]" in "\n".join(some)
        assert screen_text(app)[2] == "8 ranks asked, 8 answered (8 by agent) 22:13:20"
        assert "└─ 7 ranks [0-4,6,7]" in "\n".join(screen_text(app))


async def test_what_did_not_come_is_reported_and_what_came_is_shown():
    async with watching(live(HANG, VERDICT)) as (app, pilot):
        await pilot.press("D")
        await show(app, pilot, answered((0, 1), refused="6 answers did not come within 8 s"))

        assert screen_text(app)[2:4] == [
            "6 answers did not come within 8 s",
            "2 ranks asked, 2 answered (2 by agent) 22:13:20",
        ]


async def test_d_asks_for_the_tagged_ranks_or_for_the_one_under_the_cursor():
    source = live(HANG, VERDICT)
    async with watching(source) as (app, pilot):
        await pilot.press("d", "escape", "space", "space", "d")
        await pilot.pause()

        assert source.asked == [(5,), (0, 5)]
        assert app.screen.asked.ranks == (0, 5)


async def test_where_nobody_can_be_asked_the_reason_and_the_last_stacks_are_shown():
    """The job has ended: the stacks that its relay kept are shown."""
    source = live(dumps.with_stacks(HANG, (0, 1), "auto-1", NOW - 60 * SECOND), VERDICT)
    source.refuses = "no stacks can be asked for: the job has ended"
    async with watching(source) as (app, pilot):
        await pilot.press("D")
        await pilot.pause()

        assert screen_text(app)[2:5] == [
            "no stacks can be asked for: the job has ended",
            "",
            "2 ranks asked, 2 answered (2 by agent) 22:12:20, 60 s ago",
        ]


async def test_the_last_dump_is_shown_without_asking():
    source = live(dumps.with_stacks(HANG, None, "auto-1", NOW - 60 * SECOND), VERDICT)
    async with watching(source) as (app, pilot):
        await pilot.press("4")
        await pilot.pause()

        assert "8 ranks asked, 8 answered (8 by agent) 22:12:20, 60 s ago" in screen_text(app)
        assert source.asked == []
        await pilot.press("D")
        assert source.asked == [()]


async def test_ranks_of_a_job_that_has_ended_are_not_asked():
    snapshot = replace(dumps.with_stacks(HANG, (0, 1), "auto-1", NOW - 60 * SECOND), live=False)
    source = live(snapshot, VERDICT)
    async with watching(source) as (app, pilot):
        await pilot.press("D")
        await pilot.pause()

        assert source.asked == []
        assert screen_text(app)[2] == "the job has ended: these are its last stacks"
        assert screen_text(app)[4].startswith("2 ranks asked, 2 answered")


async def test_without_a_dump_it_says_which_key_takes_one():
    async with watching(live(HANG, VERDICT)) as (app, pilot):
        await pilot.press("4")
        await pilot.pause()

        assert "no stacks of this job have been taken yet; D asks all ranks" in screen_text(app)


async def test_asking_again_waits_for_the_new_answers():
    async with watching(live(HANG, VERDICT)) as (app, pilot):
        await pilot.press("D")
        await show(app, pilot, answered())
        await pilot.press("d")
        await pilot.pause()
        again = screen_text(app)[2]
        await show(app, pilot, answered(number=2))

        assert again == "asking 8 ranks, 0 answered so far ..."
        assert screen_text(app)[2].startswith("8 ranks asked, 8 answered")


async def test_v_shows_the_tree_and_t_the_other_threads():
    async with watching(live(HANG, VERDICT), (80, 40)) as (app, pilot):
        await pilot.press("D")
        await show(app, pilot, answered())
        await pilot.press("v")
        assert screen_text(app)[3:5] == ["└─ 8 ranks [0-7]", "      main.py:12 main"]
        await pilot.press("v", "T")
        assert "     threading.wait" in screen_text(app)
        await pilot.press("escape")
        assert isinstance(app.screen, MainScreen)


async def test_answers_come_through_a_frozen_picture():
    async with watching(live(HANG, VERDICT)) as (app, pilot):
        await pilot.press("p", "D")
        await show(app, pilot, answered())

        assert screen_text(app)[2].startswith("8 ranks asked, 8 answered")


async def test_the_past_cannot_be_asked():
    source = live(HANG, VERDICT)
    source.shown = replace(source.shown, travelled=True)
    async with watching(source) as (app, pilot):
        await pilot.press("D")
        await pilot.pause()

        assert source.asked == []
        assert screen_text(app)[2].startswith("you are looking at the past")


async def test_a_ranks_page_has_its_last_stacks_and_asks_for_new_ones():
    source = live(dumps.with_stacks(HANG), VERDICT)
    async with watching(source, (100, 90)) as (app, pilot):
        await pilot.press("enter")
        lines = screen_text(app)
        at = lines.index("stacks")
        await pilot.press("d")

        assert lines[at + 1] == "  taken         0 s ago, by agent"
        assert lines[at + 2].startswith("  └─ 1 rank [5]  train.py:80 train_step")
        assert (
            lines[at + 4] == "       worker 4811: data.py:40 load_image › tarfile (1 frame) › read"
        )
        assert source.asked == [(5,)]


def shown(glyphs=UNICODE):
    source = live(dumps.with_stacks(HANG, None, "auto-1", NOW - 20 * SECOND), VERDICT)
    return DdtopApp(source, JOB, clock=lambda: NOW, glyphs=glyphs)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("keys", [["4"], ["4", "v"]], ids=["classes", "tree"])
def test_picture(snap_compare, size, keys):
    assert snap_compare(shown(), terminal_size=size, press=keys)


def test_picture_without_colours_and_without_glyphs(snap_compare, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert snap_compare(shown(ASCII), terminal_size=(80, 24), press=["4"])
