"""The command palette, the columns page, following, and the mouse on them."""

from dataclasses import replace

import pytest

from ddtop.follow.look import Look
from ddtop.present.numbers import REPLACED
from ddtop.ui.commands import commands, hits, matching
from ddtop.ui.screens.finding import FindingScreen
from ddtop.ui.screens.main import MainScreen
from ddtop.ui.screens.menus import ColumnsScreen, CommandsScreen
from ddtop.ui.screens.pages import ExplainScreen, RankScreen
from ddtop.ui.screens.signals import SignalsScreen
from ddtop.ui.screens.stacks import StacksScreen
from tests.ui import builders
from tests.ui.builders import live
from tests.ui.screens import screen_text, show, shown_ranks, watching

SNAPSHOT, VERDICT = builders.hang()
ALL = commands(SNAPSHOT, VERDICT.findings)


def names(text):
    return [one.name for one in matching(ALL, text, SNAPSHOT)]


def test_every_command_has_a_name_a_meaning_and_an_action_of_its_own():
    assert all(one.name and one.meaning for one in ALL)
    assert len({one.run for one in ALL}) == len(ALL)


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("sort comm", "sort by COMM"),
        ("freeze", "freeze"),
        ("rank 3", "go to rank 3"),
        ("3", "go to rank 3"),
        ("Theme L", "theme light"),
        ("stacks all", "all stacks"),
        ("why", "why: loader-stuck"),
        ("explain rank-stopped", "explain rank-stopped"),
        ("srtcomm", "sort by COMM"),
        ("thmono", "theme mono"),
        ("stacks rank:0-3", "stacks rank:0-3"),
        ("filter state:blocked", "filter state:blocked"),
    ],
)
def test_what_is_meant_is_on_top(text, first):
    assert names(text)[0] == first


@pytest.mark.parametrize(
    "text", ["rank 8", "rank 9999999", "no such thing", "[", "stacks tp:9", "stacks r:"]
)
def test_what_is_not_there_is_not_offered(text):
    assert not any(name.startswith(("go to rank 8", "go to rank 9")) for name in names(text))


@pytest.mark.parametrize(
    ("text", "marked"), [("srtcm", "s rt    c m"), ("comm sort", "sort    comm"), ("", "")]
)
def test_the_letters_that_were_typed_are_marked(text, marked):
    name = "sort by COMM"
    letters = (letter if at in hits(name, text) else " " for at, letter in enumerate(name))
    assert "".join(letters).rstrip().casefold() == marked


async def test_the_rows_behind_commands_signals_and_copies_stay_visible_and_are_news():
    async with watching(live(*builders.hang())) as (app, pilot):
        first = screen_text(app)[:6]
        for key in ("ctrl+p", "f9", "y"):
            await pilot.press(key)
            await pilot.pause()
            assert screen_text(app)[:6] == first
            assert not isinstance(app.screen, MainScreen)
            app.session.source.shown = replace(app.session.source.shown, contact="no news")
            app.tick()
            await pilot.pause()
            assert any("no news" in line for line in screen_text(app)[:6])
            app.session.source.shown = replace(app.session.source.shown, contact=None)
            app.tick()
            await pilot.press("escape")
            await pilot.pause()


async def chosen(pilot, text):
    """Types this into the palette, and Enter."""
    await pilot.press("ctrl+p", *text.replace(" ", "_").replace("_", " "), "enter")
    await pilot.pause()
    await pilot.pause()


async def test_only_blocked_ranks_are_one_command_away():
    async with watching(live(SNAPSHOT, VERDICT)) as (app, pilot):
        await pilot.press("5")
        await chosen(pilot, "only bl")

        assert isinstance(app.screen, MainScreen)
        assert shown_ranks(app) == [0, 1, 2, 3, 4, 6, 7]
        await chosen(pilot, "all ranks")
        assert len(shown_ranks(app)) == 8


@pytest.mark.parametrize(
    ("text", "screen"),
    [
        ("open rank 2", RankScreen),
        ("why: load", FindingScreen),
        ("explain wait-c", ExplainScreen),
        ("columns", ColumnsScreen),
    ],
)
async def test_a_command_opens_what_it_says_from_any_page(text, screen):
    async with watching(live(SNAPSHOT, VERDICT)) as (app, pilot):
        await pilot.press("enter")
        assert isinstance(app.screen, RankScreen)
        await chosen(pilot, text)

        assert isinstance(app.screen, screen)
        assert len(app.screen_stack) <= 2


async def test_sorting_themes_and_ranks_by_command():
    async with watching(live(SNAPSHOT, VERDICT)) as (app, pilot):
        await chosen(pilot, "sort by comm")
        await chosen(pilot, "theme mono")
        await chosen(pilot, "rank 6")

        assert app.screen.ranks.sort_key == "comm"
        assert app.session.paint.palette.name == "mono"
        assert app.screen.table.cursor_rank == 6


async def test_what_was_found_when_the_palette_was_opened_stays_under_the_finger():
    async with watching(live(SNAPSHOT, VERDICT)) as (app, pilot):
        await pilot.press("ctrl+p")
        before = screen_text(app)[-13:]
        healthy = builders.healthy()
        await show(app, pilot, Look(healthy, builders.calm(healthy)))
        after = screen_text(app)[-13:]
        await pilot.press("escape")

        assert before == after
        assert before[2].startswith("why: loader-stuck")
        assert isinstance(app.screen, MainScreen)


@pytest.mark.parametrize("size", [(40, 10), (80, 24), (200, 50)])
@pytest.mark.parametrize("key", ["ctrl+p", "c"])
async def test_nothing_is_wider_than_its_terminal(size, key):
    async with watching(live(SNAPSHOT, VERDICT), size) as (app, pilot):
        await pilot.press(key)
        await pilot.pause()

        assert isinstance(app.screen, CommandsScreen | ColumnsScreen)
        assert all(len(line) <= size[0] for line in screen_text(app))


async def test_a_double_click_does_a_command():
    async with watching(live(SNAPSHOT, VERDICT)) as (app, pilot):
        await pilot.press("ctrl+p", *"theme light")
        await pilot.pause()
        await pilot.click("PickList#found", offset=(2, 0), times=2)
        await pilot.pause()

        assert app.session.paint.palette.name == "light"


async def test_the_palette_says_which_of_its_rows_are_seen_as_the_cursor_goes_down():
    async with watching(live(SNAPSHOT, VERDICT)) as (app, pilot):
        await pilot.press("ctrl+p")
        await pilot.pause()
        before = screen_text(app)[-2]
        await pilot.press("pagedown", "pagedown")
        await pilot.pause()
        first, _, count = app.screen.list.visible_range

        assert f"rows 1-9 of {count}" in before
        assert f"rows {first}-{first + 8} of {count}" in screen_text(app)[-2]
        assert first > 1


async def test_columns_are_hidden_and_shown_and_others_get_their_room():
    async with watching(live(SNAPSHOT, VERDICT), (100, 30)) as (app, pilot):
        before = app.screen.ranks.columns()
        await pilot.press("c")
        rss = next(line for line in screen_text(app) if "RSS" in line)
        await pilot.press("down", "down", "space")
        await pilot.click("ColumnsScreen #body", offset=(1, 4))
        hidden = app.session.setup.hidden
        await pilot.press("escape")
        after = app.screen.ranks.columns()
        await pilot.press("c", "a", "escape")

        assert "no room" in rss
        assert set(hidden) == {"iteration", "step", *REPLACED}
        assert {"step", "iteration"} & before == {"step", "iteration"}
        assert not {"step", "iteration"} & after
        assert after - before
        assert {"comm", "lane"} <= app.screen.ranks.columns()


async def test_a_column_of_gpus_is_missing_for_want_of_them_and_not_of_room():
    async with watching(live(SNAPSHOT, VERDICT), (200, 30)) as (app, pilot):
        await pilot.press("c")
        await pilot.pause()
        lines = {line.split()[1]: line for line in screen_text(app) if line.startswith("[x]")}
        # What another column shows as well does not come back for want of it.
        lines = {title: line for title, line in lines.items() if title not in ("PID", "RSS")}

        assert all(" no GPU " in lines[title] for title in ("GPU", "VRAM", "NCCL"))
        assert not any("no room" in line for line in lines.values())


async def test_following_the_cursor_goes_where_the_verdict_goes_and_is_free_between():
    async with watching(live(builders.healthy())) as (app, pilot):
        await pilot.press("F", "down", "down")
        places = [app.screen.table.cursor_rank]
        await show(app, pilot, Look(SNAPSHOT, VERDICT))
        places.append(app.screen.table.cursor_rank)
        await pilot.press("down")
        await show(
            app, pilot, Look(replace(SNAPSHOT, time_unix_ns=SNAPSHOT.time_unix_ns + 1), VERDICT)
        )
        places.append(app.screen.table.cursor_rank)
        await show(app, pilot, Look(*builders.hang(culprit=2)))
        places.append(app.screen.table.cursor_rank)
        await pilot.press("F")
        await show(app, pilot, Look(*builders.hang(culprit=7)))
        places.append(app.screen.table.cursor_rank)

        assert places == [2, 5, 0, 2, 2]


async def test_a_signal_is_picked_with_the_mouse_and_sent_by_its_key_only():
    source = live(SNAPSHOT, VERDICT)
    async with watching(source) as (app, pilot):
        await pilot.press("f9")
        await pilot.click("SignalsScreen #body", offset=(6, 4))
        assert app.screen.cursor == 2
        await pilot.click("SignalsScreen #body", offset=(6, 4), times=2)
        asked = screen_text(app)
        await pilot.click("SignalsScreen #body", offset=(6, 4), times=2)
        assert isinstance(app.screen, SignalsScreen)
        assert source.signals == []
        await pilot.click("KeyBar", offset=(12, 0))
        await pilot.pause()

        assert "send SIGINT to rank 5?" in asked
        assert len(source.signals) == 1


async def test_a_recording_says_that_it_is_one_where_signals_would_be():
    source = live(SNAPSHOT, VERDICT)
    source.shown = replace(source.shown, recording=True, travelled=True)
    async with watching(source) as (app, pilot):
        await pilot.press("f9")

        assert "this is a recording: no process can get a signal" in screen_text(app)


async def test_stacks_of_some_ranks_are_asked_for_in_one_line():
    async with watching(live(SNAPSHOT, VERDICT)) as (app, pilot):
        await pilot.press("colon", *"stacks rank:0-3", "enter")
        assert isinstance(app.screen, StacksScreen)
        assert app.screen.asked.ranks == (0, 1, 2, 3)
