"""The views with their keys pressed."""

import pytest
from textual.binding import Binding

from ddtop.follow.look import Look
from ddtop.model.facts import State
from ddtop.present.help_text import ACTIONS, KEYS, VIEWS
from ddtop.present.text import line_width, plain
from ddtop.ui.app import DdtopApp
from ddtop.ui.screens.finding import FindingScreen, StoryScreen
from ddtop.ui.screens.main import MainScreen
from ddtop.ui.screens.menus import HelpScreen
from ddtop.ui.screens.pages import RankScreen
from ddtop.ui.screens.stacks import StacksScreen
from ddtop.ui.widgets.lines import key_at, tabs_line, tabs_of
from tests.ui import builders
from tests.ui.builders import NOW, SECOND, live
from tests.ui.changed import replace
from tests.ui.screens import screen_text, show, watching


def two_findings():
    snapshot, verdict = builders.hang()
    second = replace(
        verdict.findings[0],
        kind="io-stall",
        severity="warning",
        ranks=(2,),
        summary="rank 2 reads slowly",
    )
    return snapshot, replace(verdict, findings=(*verdict.findings, second))


async def press(pilot, *keys):
    for key in keys:
        await pilot.press(key)
        await pilot.pause()


async def test_tab_goes_through_all_views_and_back():
    async with watching(live(*builders.hang())) as (app, pilot):
        seen = []
        for _ in VIEWS:
            seen.append(app.screen.view.topic)
            await press(pilot, "tab")
        await press(pilot, "shift+tab")

        assert seen == [view.name for view in VIEWS]
        assert app.screen.view.topic == VIEWS[-1].name


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
async def test_every_view_is_on_its_key_says_so_and_fits_into_eighty_columns(view):
    async with watching(live(*builders.hang(64, 13))) as (app, pilot):
        await press(pilot, view.key)

        assert app.screen.view.topic == view.name
        assert app.focused is app.screen.view.target
        assert [name for name, one in app.screen.views.items() if one.display] == [view.name]
        assert ("tab", f"{view.key} {view.name}") in [
            (style, text) for text, style in tabs_line(view.name, 80)
        ]
        assert all(line_width(((line, ""),)) <= 80 for line in screen_text(app))


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
async def test_the_key_of_a_view_leaves_all_pages_for_it(view):
    async with watching(live(*builders.hang())) as (app, pilot):
        await press(pilot, "enter", "question_mark")
        assert isinstance(app.screen, HelpScreen)
        await press(pilot, view.key)

        assert isinstance(app.screen, MainScreen)
        assert app.screen.view.topic == view.name
        assert app.focused is app.screen.view.target


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
async def test_every_view_stands_a_job_of_which_nothing_is_known(view):
    async with watching(builders.FakeSource(builders.EMPTY)) as (app, pilot):
        await press(pilot, view.key, "enter", "down", "d")
        bare = replace(builders.healthy(2), groups=(), hosts=())
        await show(app, pilot, Look(bare, builders.calm(bare)))

        assert screen_text(app)[2] == "ok: 2/2 moving, watched 2 min"


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
async def test_keys_that_a_view_shows_do_something(view):
    async with watching(live(*builders.hang(64, 13)), size=(100, 30)) as (app, pilot):
        await press(pilot, view.key)
        offered = app.screen.view.keys()
        for name, _, label in offered:
            await press(pilot, view.key, "home")
            before = (
                screen_text(app),
                app.screen,
                getattr(app.screen.view.target, "cursor_key", None),
            )
            await press(pilot, name)
            main = app.screen if isinstance(app.screen, MainScreen) else None
            cursor = getattr(main.view.target, "cursor_key", None) if main else None
            assert (screen_text(app), app.screen, cursor) != before, label
            await press(pilot, "escape")
        assert isinstance(app.screen, MainScreen)


async def test_what_a_view_offers_to_ask_is_what_is_under_its_cursor():
    source = live(*builders.hang(64, 13))
    async with watching(source) as (app, pilot):
        for view in ("2", "3", "5"):
            await press(pilot, view, "d")
            assert isinstance(app.screen, StacksScreen)
            await press(pilot, "escape")

        assert source.asked == [(13,), tuple(range(64)), tuple(range(8, 16))]


async def test_the_maps_cursor_starts_on_the_culprit_and_moves_by_cells():
    async with watching(live(*builders.hang(64, 13))) as (app, pilot):
        await press(pilot, "2")
        assert screen_text(app)[-3].startswith("rank 13  ✖ culprit")
        await press(pilot, "right", "down")
        cells = app.screen.views["map"].grid
        assert cells.cursor_rank == cells.grid.moved(14, 0, 1) > 14
        await press(pilot, "n")
        assert cells.cursor_rank == 13
        await press(pilot, "enter")
        assert isinstance(app.screen, RankScreen)


def cell_of(grid, rank):
    """Where to click for that rank."""
    return next(
        (x, y) for y in range(grid.lines) for x in range(120) if list(grid.ranks_at(x, y)) == [rank]
    )


async def test_a_click_on_the_map_selects_and_a_double_click_opens():
    async with watching(live(*builders.hang(64, 13))) as (app, pilot):
        await press(pilot, "2")
        cells = app.screen.views["map"].grid
        place = cell_of(cells.grid, 3)
        await pilot.click("MapGrid", offset=place)
        assert cells.cursor_rank == 3
        await pilot.click("MapGrid", offset=place, times=2)
        await pilot.pause()
        assert isinstance(app.screen, RankScreen)


async def test_the_line_below_the_map_tells_the_rank_under_the_mouse():
    async with watching(live(*builders.hang(64, 13))) as (app, pilot):
        await press(pilot, "2")
        cells = app.screen.views["map"].grid
        await pilot.hover("MapGrid", offset=cell_of(cells.grid, 40))
        await pilot.pause()
        assert screen_text(app)[-3].startswith("rank 40  ■ blocked")
        assert cells.cursor_rank == 13

        await pilot.hover("KeyBar")
        await pilot.pause()
        assert screen_text(app)[-3].startswith("rank 13  ✖ culprit")


async def test_on_a_map_of_numbers_the_straggler_is_named_and_n_goes_to_the_unhealthy():
    snapshot = builders.healthy(64)
    ranks = tuple(
        replace(
            rank,
            state=State.STRAGGLER if rank.rank == 26 else rank.state,
            comm={"wait_ratio": 0.02 if rank.rank == 26 else 0.45},
        )
        for rank in snapshot.ranks
    )
    snapshot = replace(snapshot, ranks=ranks)
    async with watching(live(snapshot, builders.calm(snapshot)), size=(120, 36)) as (app, pilot):
        await press(pilot, "2", "m", "m")
        text = "\n".join(screen_text(app))
        assert "comm wait  ▲ rank 26 on node003: 2%, the median is 45%" in text
        assert "▲ 2%" in text
        cells = app.screen.views["map"].grid
        assert cells.cursor_rank == 26
        await press(pilot, "left", "left", "n")
        assert cells.cursor_rank == 26


async def test_the_map_makes_no_progress_while_ranks_run_and_wait_in_turn():
    """A healthy training must not flicker."""
    snapshot = builders.healthy(64)
    async with watching(live(snapshot)) as (app, pilot):
        await press(pilot, "2")
        drawn = []
        app.screen.views["map"].grid.refresh = lambda *regions, **options: drawn.extend(regions)
        turned = tuple(
            replace(r, state=snapshot.ranks[(r.rank + 1) % 64].state) for r in snapshot.ranks
        )
        await show(
            app,
            pilot,
            Look(
                replace(snapshot, ranks=turned, time_unix_ns=NOW + SECOND), builders.calm(snapshot)
            ),
        )

        assert drawn == []


async def test_enter_on_a_host_shows_its_ranks_only():
    async with watching(live(*builders.hang(64, 13))) as (app, pilot):
        await press(pilot, "5", "down", "down", "enter")

        assert app.screen.view is app.screen.ranks
        assert list(app.screen.table._keys) == list(range(16, 24))
        assert any("filter host:node002, 8 of 64 ranks" in line for line in screen_text(app))
        await press(pilot, "escape")
        assert len(app.screen.table._keys) == 64


async def test_a_host_whose_name_is_part_of_anothers_is_filtered_by_its_ranks():
    snapshot = builders.healthy(4)
    named = tuple(
        replace(r, hello=builders.hello(r.rank, 4, name))
        for r, name in zip(snapshot.ranks, ("n1", "n1", "n11", "n11"), strict=True)
    )
    async with watching(live(replace(snapshot, ranks=named))) as (app, pilot):
        await press(pilot, "5", "enter")

        assert list(app.screen.table._keys) == [0, 1]


async def test_events_follow_the_end_until_somebody_moves_up():
    snapshot, verdict = builders.hang()
    async with watching(live(snapshot, builders.calm(snapshot)), size=(90, 14)) as (app, pilot):
        await press(pilot, "6")
        listed = app.screen.views["events"].list
        for second in range(30):
            finding = replace(verdict.findings[0], since_unix_ns=NOW + second * SECOND)
            found = replace(verdict, findings=(finding,)) if second % 2 else builders.calm(snapshot)
            await show(
                app, pilot, Look(replace(snapshot, time_unix_ns=NOW + second * SECOND), found)
            )
        assert listed.visible_range[1] == listed.visible_range[2] > 10
        await press(pilot, "up", "up")
        held = listed.cursor_key
        await show(app, pilot, Look(replace(snapshot, time_unix_ns=NOW + 31 * SECOND), verdict))
        assert listed.cursor_key == held
        await press(pilot, "end", "enter")
        assert isinstance(app.screen, StoryScreen)


async def test_of_several_findings_the_worst_is_open_and_the_others_are_a_key_away():
    async with watching(live(*two_findings()), size=(100, 60)) as (app, pilot):
        await press(pilot, "e")
        assert screen_text(app)[2].startswith("› 1  ✖ rank 5")
        assert "  kind          loader-stuck (critical)" in screen_text(app)
        await press(pilot, "right")
        assert screen_text(app)[3].startswith("› 2  ▲ rank 2 reads slowly")
        assert "  kind          io-stall (warning)" in screen_text(app)
        await press(pilot, "e")
        assert isinstance(app.screen, MainScreen)


async def test_an_opened_finding_stays_open_when_a_worse_one_comes():
    snapshot, verdict = two_findings()
    first = replace(verdict, findings=verdict.findings[1:])
    async with watching(live(snapshot, verdict), size=(100, 60)) as (app, pilot):
        await press(pilot, "e", "right")
        await show(app, pilot, Look(snapshot, first))
        await show(app, pilot, Look(snapshot, verdict))

        assert isinstance(app.screen, FindingScreen)
        assert "  kind          io-stall (warning)" in screen_text(app)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (["1"], "what ranks shows"),
        (["2"], "what map shows"),
        (["3"], "COMPLETED"),
        (["4"], "what stacks shows"),
        (["5"], "RANKS' CORES"),
        (["6"], "STOOD"),
        (["e"], "at fault"),
        (["1", "enter"], "what this page shows"),
    ],
)
async def test_the_help_explains_first_what_it_was_opened_over(keys, words):
    async with watching(live(*builders.hang()), size=(100, 80)) as (app, pilot):
        await press(pilot, *keys, "question_mark")
        lines = screen_text(app)
        keys_at = lines.index("all keys")

        assert lines[2].startswith("keys of ")
        assert any(words in line for line in lines[:keys_at])
        assert any(line.startswith("  Tab ") for line in lines[keys_at:])


async def test_a_click_on_a_views_name_shows_it():
    async with watching(live(*builders.hang())) as (app, pilot):
        await pilot.click("ViewBar", offset=(11, 0))
        await pilot.pause()

        assert app.screen.view.topic == "map"


def test_the_line_of_views_says_the_one_in_front_where_there_is_little_room():
    assert plain(tabs_line("map", 60)).startswith(
        "1 ranks  2 map  3 groups  4 stacks  5 hosts  6 events ─"
    )
    assert plain(tabs_line("map", 24)) == "1  2 map  3  4  5  6 ───"
    assert [key_at(tabs_of("map", 24), x) for x in (0, 3, 10, 23)] == ["1", "2", "3", None]
    assert all(
        width - 1 <= line_width(tabs_line("events", width)) <= width for width in range(25, 120)
    )


def test_every_action_of_the_table_exists_and_the_apps_keys_are_the_tables():
    """The help, the key bar and the palette are made from this table. A key in it that does nothing
    would mislead.
    """
    bindings = [one for owner in DdtopApp.__mro__ for one in vars(owner).get("BINDINGS", ())]
    bound = {
        (key.strip(), one.action)
        for one in bindings
        if isinstance(one, Binding)
        for key in one.key.split(",")
    }
    for one in ACTIONS:
        where, _, run = one.run.rpartition(".") if one.run.startswith("app.") else ("", "", one.run)
        owner = DdtopApp if where else MainScreen
        assert hasattr(owner, f"action_{run.split('(')[0]}"), one.name
        if where:
            assert {(key, run) for key in one.keys.split(",")} <= bound, one.name
    assert len({key for key, _ in KEYS}) == len(KEYS)


@pytest.mark.parametrize("view", ["2", "3", "4", "5", "6"])
async def test_what_is_typed_after_a_slash_is_no_command_in_any_view(view):
    """`t` is the key of the themes, `q` quits."""
    async with watching(live(*builders.hang(16)), (120, 40)) as (app, pilot):
        await pilot.press(view, "slash", *"tq", "enter")
        await pilot.pause()

        assert app.is_running
        assert app.screen.input.value == "tq"
        assert app.screen.view.searched == "tq"
        before = app.session.setup.theme
        await pilot.press("escape")
        assert app.session.setup.theme == before
        assert app.screen.view.searched == ""


async def test_hosts_and_groups_show_the_rows_that_have_the_words():
    async with watching(live(*builders.hang(16)), (120, 40)) as (app, pilot):
        await pilot.press("5", "slash", *"node001", "enter")
        await pilot.pause()
        lines = screen_text(app)

    assert any("node001" in line for line in lines)
    assert not any(line.startswith("node000") for line in lines)
    assert any("filter node001, 1 of 2 rows" in line for line in lines)


async def test_the_map_goes_to_the_first_rank_that_passes():
    async with watching(live(*builders.hang(16)), (120, 40)) as (app, pilot):
        await pilot.press("2", "slash", *"rank:11", "enter")
        await pilot.pause()

        assert app.screen.view.grid.cursor_rank == 11
        assert any("filter rank:11, 1 of 16 ranks" in line for line in screen_text(app))
