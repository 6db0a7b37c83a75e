"""The dashboard with its keys pressed: the app against a source that shows what it is told to."""

import pytest

from ddtop.follow.look import Look
from ddtop.ui.app import DdtopApp
from ddtop.ui.screens.finding import FindingScreen
from ddtop.ui.screens.main import MainScreen
from ddtop.ui.screens.menus import HelpScreen
from ddtop.ui.screens.pages import RankScreen
from tests.ui import builders
from tests.ui.builders import JOB, NOW, SECOND, FakeSource, live
from tests.ui.changed import replace
from tests.ui.screens import screen_text, show, shown_ranks, watching


async def until_nothing_is_drawn(pilot, drawn):
    """On a loaded machine the first layout may still be under way when the app is up."""
    while True:
        drawn.clear()
        await pilot.pause()
        if not drawn:
            return


async def test_the_screen_says_whom_it_waits_for_before_the_first_record():
    async with watching(FakeSource(builders.EMPTY)) as (app, _):
        assert screen_text(app)[0] == f"waiting for the first records of {JOB}, 0 s"


async def test_the_first_records_appear_without_a_key():
    async with watching(FakeSource(builders.EMPTY)) as (app, pilot):
        snapshot = builders.healthy()
        await show(app, pilot, Look(snapshot, builders.calm(snapshot)))

        assert screen_text(app)[2] == "ok: 8/8 moving, watched 2 min"
        assert shown_ranks(app) == list(range(8))


async def test_the_cursor_follows_its_rank_when_the_order_changes():
    """A person reads row 3 when the hang begins. The row under the cursor must not become another
    rank.
    """
    snapshot = builders.healthy()
    async with watching(live(snapshot)) as (app, pilot):
        await pilot.press("j", "down", "j")
        assert app.screen.table.cursor_rank == 3
        await show(app, pilot, Look(*builders.hang()))

        assert app.screen.table.cursor_rank == 3
        assert shown_ranks(app)[:4] == [5, 0, 1, 2]


async def test_a_cursor_that_nobody_moved_stays_on_the_first_row():
    snapshot = builders.healthy()
    async with watching(live(snapshot)) as (app, pilot):
        assert app.screen.table.cursor_rank == 0
        await show(app, pilot, Look(*builders.hang()))

        assert app.screen.table.cursor_rank == 5


async def test_the_cursor_goes_by_pages_and_to_the_ends():
    async with watching(live(builders.healthy(512))) as (app, pilot):
        await pilot.press("end")
        assert app.screen.table.cursor_rank == 511
        assert any("rows 496-512 of 512" in line for line in screen_text(app))
        await pilot.press("pageup")
        assert app.screen.table.cursor_rank == 495
        await pilot.press("home", "up")
        assert app.screen.table.cursor_rank == 0


async def test_the_cursor_stays_in_sight_when_the_terminal_gets_lower():
    async with watching(live(builders.healthy(64)), (80, 70)) as (app, pilot):
        await pilot.press("end")
        await pilot.resize_terminal(80, 24)
        await pilot.pause()

        assert app.screen.table.cursor_rank == 63
        assert any(line.startswith("  63 ") for line in screen_text(app))


async def test_only_lines_that_differ_are_drawn_again():
    async with watching(live(*builders.hang()), (120, 30)) as (app, pilot):
        drawn = []
        table = app.screen.table
        table.refresh = lambda *regions, **options: drawn.extend(regions)
        await until_nothing_is_drawn(pilot, drawn)
        app.tick()
        assert drawn == []
        snapshot, verdict = app.session.shown.snapshot, app.session.shown.verdict
        slower = replace(snapshot.ranks[2], process={"cpu_ratio": 0.5})
        ranks = (*snapshot.ranks[:2], slower, *snapshot.ranks[3:])
        await show(app, pilot, Look(replace(snapshot, ranks=ranks), verdict))

        assert [(region.y, region.height) for region in drawn] == [(3, 1)]


async def test_a_filter_is_applied_while_it_is_typed_and_escape_takes_it_away():
    async with watching(live(*builders.hang())) as (app, pilot):
        await pilot.press("slash", *"state:cul")
        assert shown_ranks(app) == [5]
        assert any("filter state:cul, 1 of 8 ranks" in line for line in screen_text(app))
        await pilot.press("enter")
        assert app.focused is app.screen.table
        assert shown_ranks(app) == [5]
        await pilot.press("escape")
        assert len(shown_ranks(app)) == 8


async def test_keys_of_the_app_are_letters_while_a_filter_is_typed():
    async with watching(live(builders.healthy())) as (app, pilot):
        await pilot.press("slash", *"qpt", "slash")

        assert app.screen.input.value == "qpt/"
        assert not app.session.frozen


async def test_rows_are_sorted_by_the_next_and_the_last_column():
    async with watching(live(builders.healthy()), (120, 30)) as (app, pilot):
        await pilot.press("greater_than_sign")
        assert app.screen.ranks.sort_key == "rank"
        await pilot.press("less_than_sign", "less_than_sign")
        assert app.screen.ranks.sort_key == "heard"
        assert shown_ranks(app) == [2, 5, 1, 4, 7, 0, 3, 6]
        assert any("sorted by HEARD" in line for line in screen_text(app))
        await pilot.press("f6")
        assert app.screen.ranks.sort_key == "verdict"
        assert shown_ranks(app) == list(range(8))


async def test_a_key_turns_the_order_round_and_the_arrow_in_the_title_says_which_it_is():
    async with watching(live(builders.healthy()), (120, 30)) as (app, pilot):
        await pilot.press("less_than_sign")
        assert any("↓HEAR" in line for line in screen_text(app))
        await pilot.press("R")
        assert any("↑HEAR" in line for line in screen_text(app))
        assert shown_ranks(app) == [0, 3, 6, 1, 4, 7, 2, 5]


async def test_without_a_sort_column_nothing_is_turned_round_and_the_foot_says_why():
    async with watching(live(builders.healthy())) as (app, pilot):
        await pilot.press("R")
        assert shown_ranks(app) == list(range(8))
        assert "the order of the verdict" in app.session.notice


@pytest.mark.parametrize(
    ("typed", "said"),
    [("host:nowhere", "no rank matches host:nowhere"), ("hots:node", "unknown key 'hots'")],
)
async def test_a_filter_that_is_wrong_or_finds_nothing_names_the_fields_that_there_are(typed, said):
    async with watching(live(builders.healthy())) as (app, pilot):
        await pilot.press("slash", *typed)
        await pilot.pause()
        lines = " ".join(screen_text(app)[-5:])
        assert said in lines
        assert "keys: state: host: rank:" in lines
        assert "with > < =" in lines
        await pilot.press("escape")
        await pilot.pause()
        assert said not in " ".join(screen_text(app))


async def test_rows_that_no_word_of_the_filter_is_in_are_missed_in_words():
    async with watching(live(builders.healthy())) as (app, pilot):
        await pilot.press("5", "slash", *"nowhere")
        await pilot.pause()
        assert any("no row contains nowhere" in line for line in screen_text(app))


async def test_a_click_on_a_title_sorts_and_a_second_one_turns_around():
    async with watching(live(builders.healthy())) as (app, pilot):
        await pilot.click("TitleRow", offset=(2, 0))
        assert (app.screen.ranks.sort_key, app.screen.ranks.descending) == ("rank", False)
        await pilot.click("TitleRow", offset=(2, 0))
        assert shown_ranks(app) == list(range(7, -1, -1))


async def test_a_click_on_a_row_moves_the_cursor_and_a_double_click_opens():
    async with watching(live(builders.healthy())) as (app, pilot):
        await pilot.click("RankTable", offset=(5, 3))
        assert app.screen.table.cursor_rank == 3
        await pilot.click("RankTable", offset=(5, 3), times=2)
        await pilot.pause()
        assert isinstance(app.screen, RankScreen)


async def test_space_tags_and_goes_on():
    async with watching(live(builders.healthy())) as (app, pilot):
        await pilot.press("space", "space", "up", "space")

        assert app.screen.table.tagged == {0}
        assert any("1 tagged" in line for line in screen_text(app))


async def test_enter_opens_a_rank_and_its_neighbours_and_escape_goes_back():
    async with watching(live(*builders.hang())) as (app, pilot):
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, RankScreen)
        assert screen_text(app)[2].startswith("rank 5  ✖ culprit")
        await pilot.press("right")
        await pilot.pause()
        assert screen_text(app)[2].startswith("rank 6  ■ blocked")
        await pilot.press("escape")
        assert isinstance(app.screen, MainScreen)


async def test_e_and_a_click_on_the_verdict_open_the_findings():
    async with watching(live(*builders.hang())) as (app, pilot):
        await pilot.press("e")
        await pilot.pause()
        assert isinstance(app.screen, FindingScreen)
        await pilot.press("q")
        assert isinstance(app.screen, MainScreen)
        await pilot.click("Banner", offset=(5, 1))
        await pilot.pause()
        assert isinstance(app.screen, FindingScreen)


async def test_a_page_goes_on_while_it_is_open():
    async with watching(live(builders.healthy())) as (app, pilot):
        await pilot.press("enter")
        await pilot.pause()
        await show(app, pilot, Look(*builders.hang()))
        assert "rank 0  ■ blocked" in screen_text(app)[2]
        await pilot.press("escape")
        await pilot.pause()
        assert screen_text(app)[2].startswith("✖ rank 5")


async def test_frozen_facts_make_no_progress_while_the_feed_goes_on():
    snapshot = builders.healthy()
    async with watching(live(snapshot)) as (app, pilot):
        await pilot.press("p")
        hang, verdict = builders.hang()
        await show(app, pilot, Look(replace(hang, time_unix_ns=NOW + 12 * SECOND), verdict))
        assert "FROZEN at 22:13:20, 12 s ago" in screen_text(app)[0]
        assert screen_text(app)[2] == "ok: 8/8 moving, watched 2 min"
        assert len(app.session.history.memory_of(0).step_ms) == 2
        await pilot.press("p")
        await pilot.pause()
        assert screen_text(app)[2].startswith("✖ rank 5")


async def test_two_keys_choose_how_often_the_screen_is_refreshed():
    async with watching(live(builders.healthy())) as (app, pilot):
        for key, chosen_s in (("i", 1.0), ("i", 2.0), ("I", 1.0)):
            await pilot.press(key)
            assert app.session.interval_s == chosen_s
        await pilot.pause()
        assert any("every 1 s" in line for line in screen_text(app))
        await pilot.press("I", "I")
        assert app.session.interval_s == 0.5


async def test_themes_go_around_by_name_and_the_text_stays_the_same():
    async with watching(live(*builders.hang())) as (app, pilot):
        *before, _, keys = screen_text(app)
        names = []
        for _ in range(4):
            await pilot.press("t")
            await pilot.pause()
            names.append(app.session.paint.palette.name)
            assert screen_text(app) == [*before, f"theme {names[-1]}", keys]

        assert names == ["light", "ansi", "mono", "dark"]


async def test_with_sixteen_colours_the_terminals_own_are_taken(monkeypatch):
    """Of sixteen colours, white is the nearest to a soft yellow. Blocked rows would look like any
    other.
    """
    monkeypatch.setenv("TERM", "screen")
    monkeypatch.delenv("COLORTERM")
    async with watching(live(*builders.hang())) as (app, _):
        assert app.session.paint.palette.name == "ansi"


async def test_help_explains_keys_and_columns_and_closes_with_its_own_key():
    async with watching(live(builders.healthy()), size=(100, 140)) as (app, pilot):
        await pilot.press("question_mark")
        await pilot.pause()
        assert isinstance(app.screen, HelpScreen)
        text = "\n".join(screen_text(app))
        assert "freeze the picture" in text
        assert "STEP ms" in text
        await pilot.press("question_mark")
        assert isinstance(app.screen, MainScreen)


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
async def test_q_and_control_c_quit(key):
    app = DdtopApp(live(builders.healthy()), JOB, clock=lambda: NOW)
    async with app.run_test() as pilot:
        await pilot.press(key)
    assert app.return_code == 0


async def test_a_key_on_the_last_line_can_be_clicked():
    async with watching(live(*builders.hang())) as (app, pilot):
        await pilot.click("KeyBar", offset=(1, 0))
        await pilot.pause()

        assert isinstance(app.screen, HelpScreen)


@pytest.mark.parametrize("look", [Look(*builders.hang()), builders.EMPTY], ids=["hang", "empty"])
async def test_every_key_that_is_shown_does_something(look):
    """A key in the list that does nothing would mislead."""
    async with watching(FakeSource(look), size=(200, 50)) as (app, pilot):
        for name, _, label in tuple(app.screen.keys._keys):
            before = (screen_text(app), app.screen, app.session.paint.palette.name)
            if label in ("quit", "theme"):
                continue
            await pilot.press(name)
            await pilot.pause()
            assert (screen_text(app), app.screen, app.session.paint.palette.name) != before, label
            await pilot.press("escape", "1")
            if app.session.frozen:
                await pilot.press("p")
            app.screen.ranks.sort_by(None)
            await pilot.pause()


async def test_the_banner_does_not_pull_the_table_up_and_down():
    """The sentence gets shorter by a word from one second to the next. The rows must stay where
    they are.
    """
    async with watching(live(*builders.hang())) as (app, pilot):
        top = app.screen.table.region.y
        snapshot, verdict = builders.hang()
        shorter = replace(verdict.findings[0], summary="rank 5 sleeps", evidence=())
        await show(app, pilot, Look(snapshot, replace(verdict, findings=(shorter,))))
        await pilot.pause()
        assert app.screen.table.region.y == top
        await show(app, pilot, Look(snapshot, builders.calm(snapshot)))
        await pilot.pause()
        assert app.screen.table.region.y < top


async def test_the_screen_follows_the_terminal_when_its_size_changes():
    async with watching(live(*builders.hang())) as (app, pilot):
        await pilot.resize_terminal(200, 50)
        await pilot.pause()
        assert any("node000  pid 4805" in line for line in screen_text(app))
        await pilot.resize_terminal(60, 20)
        await pilot.pause()
        assert all(len(line) <= 60 for line in screen_text(app))
        assert "✖ culprit" in "\n".join(screen_text(app))


async def test_plus_and_underscore_enlarge_the_panels_or_the_rows_and_hide_the_rest():
    async with watching(live(*builders.hang(64, 13)), (200, 40)) as (app, pilot):
        table, aside = app.screen.table, app.screen.ranks.side
        shared = table.size.height
        assert aside.display
        await pilot.press("underscore", "underscore")
        assert table.size.height > 3 * shared
        assert not aside.display
        assert not any("who waits for whom" in line for line in screen_text(app))
        assert any("+: panels" in line for line in screen_text(app))
        await pilot.press("plus")
        assert table.size.height == shared
        assert any("who waits for whom" in line for line in screen_text(app))
        await pilot.press("plus")
        assert table.size.height < shared
        assert not aside.display
