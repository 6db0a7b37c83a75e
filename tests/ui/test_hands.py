"""What a person saves from the dashboard: copies, an open file, a saved screen; and the key for the
next problem.
"""

import os
import stat
import sys
from pathlib import Path

import pytest

from ddtop.follow.look import Look
from ddtop.present.rank import copies_of
from ddtop.present.text import UNICODE
from ddtop.ui.app import DdtopApp
from ddtop.ui.screens.menus import CommandsScreen, HelpScreen
from ddtop.ui.screens.pages import CopyScreen, RankScreen
from ddtop.ui.screens.stacks import StacksScreen
from ddtop.ui.session import Kept, Session
from ddtop.ui.source_place import source_place
from ddtop.ui.terminal.files import editor_command, run_editor
from tests.ui import builders
from tests.ui.builders import JOB, NOW, SECOND, FakeSource, live
from tests.ui.changed import replace
from tests.ui.dumps import with_stacks
from tests.ui.screens import screen_text, watching

HERE = os.uname().nodename


def at_line(file, host=HERE, recording=False):
    """A session on a job whose rank 0 is at a line of this file."""
    snapshot = builders.healthy(2)
    first = snapshot.ranks[0]
    place = type(first.reported.place)("step", str(file), 7, None, NOW)
    first = replace(first, hello=builders.hello(0, 2, host), reported={"place": place})
    source = live(replace(snapshot, ranks=(first, snapshot.ranks[1])))
    source.shown = replace(source.shown, recording=recording)
    return Session(source, JOB, clock=lambda: NOW)


def test_what_is_known_of_a_rank_can_be_copied_and_the_sentence_has_its_advice():
    items = {one.key: one.text for one in copies_of(*builders.hang(), 5)}
    assert items["p"] == "4805"
    assert items["h"] == "node000"
    assert items["c"] == "train.py --batch-size 64 --model resnet50"
    assert items["l"] == "/home/ada/data.py:40"
    assert items["s"].startswith("rank 5 has been in the DataLoader")
    assert "check the file server of /data" in items["s"]
    assert "k" not in items


async def test_a_key_copies_by_the_escape_sequence_and_says_so():
    async with watching(live(*builders.hang())) as (app, pilot):
        await pilot.press("y", "p")
        await pilot.pause()
        assert app.clipboard == "4805"
        app.tick()
        await pilot.pause()
        assert any("copied the pid" in line for line in screen_text(app))


async def test_a_click_on_a_text_copies_it():
    async with watching(live(*builders.hang())) as (app, pilot):
        await pilot.press("y")
        await pilot.pause()
        assert isinstance(app.screen, CopyScreen)
        at = next(y for y, line in enumerate(screen_text(app)) if "host" in line and y > 2)
        await pilot.click(offset=(20, at))
        await pilot.pause()
        assert app.clipboard == "node000"


@pytest.mark.parametrize(
    ("editor", "command"),
    [
        ("vim -R", ["vim", "-R", "+7", "/a b.py"]),
        ("code --wait", ["code", "--wait", "--goto", "/a b.py:7"]),
        ("/usr/bin/hx", ["/usr/bin/hx", "/a b.py:7"]),
        ("", ["vi", "+7", "/a b.py"]),
    ],
)
def test_editors_are_told_the_line_in_their_own_way(editor, command):
    assert editor_command("/a b.py", 7, {"EDITOR": editor}) == command


def test_an_editor_that_is_not_there_is_reported():
    assert "cannot be started" in (run_editor(["/no/such/editor", "x"]) or "")
    assert run_editor([sys.executable, "-c", ""]) is None


def test_a_file_of_this_host_is_opened_at_its_line(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("pass\n")
    place = source_place(at_line(file), 0)
    assert (place.file, place.line, place.why, place.note) == (str(file), 7, "", "")


def test_a_recording_of_another_host_opens_nothing(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("pass\n")
    assert "recording of node9" in source_place(at_line(file, "node9", recording=True), 0).why
    assert "this host's copy" in source_place(at_line(file, "node9"), 0).note


def test_a_file_that_is_not_here_is_reported_with_the_host_that_has_it(tmp_path):
    missing = tmp_path / "gone.py"
    assert "rank 0 runs on node9" in source_place(at_line(missing, "node9"), 0).why


async def test_the_screen_is_saved_as_text_for_its_owner_only(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with watching(live(*builders.hang())) as (app, pilot):
        shown = screen_text(app)
        await pilot.press("w", "W")
        await pilot.pause()
    text, svg = sorted(tmp_path.iterdir(), key=lambda path: path.suffix, reverse=True)
    assert stat.S_IMODE(text.stat().st_mode) == 0o600
    assert text.read_text().splitlines()[:8] == shown[:8]
    assert "<svg" in svg.read_text()
    assert "@font-face" not in svg.read_text()


async def test_a_folder_that_cannot_be_written_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "cwd", lambda: tmp_path / "none")
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "none")
    async with watching(live(*builders.hang())) as (app, pilot):
        await pilot.press("w")
        await pilot.pause()
        assert "cannot be saved" in app.session.notice


async def test_the_next_problem_goes_round_the_ranks_at_fault():
    async with watching(live(*builders.hang(64, 40))) as (app, pilot):
        await pilot.press("end", "n")
        assert app.screen.table.cursor_rank == 40
    async with watching(live(builders.healthy())) as (app, pilot):
        await pilot.press("n")
        assert "no other rank has a problem" in app.session.notice


async def test_a_colon_opens_the_commands():
    async with watching(live(builders.healthy())) as (app, pilot):
        await pilot.press(":")
        await pilot.pause()
        assert isinstance(app.screen, CommandsScreen)


def test_the_editor_runs_to_its_end_before_anything_else():
    assert run_editor([sys.executable, "-c", "raise SystemExit(3)"]).endswith("exit code 3")


async def test_a_page_is_searched_while_it_is_typed_and_n_goes_on():
    async with watching(live(*builders.hang())) as (app, pilot):
        await pilot.press("question_mark", "slash", *"loader")
        await pilot.pause()
        assert "match 1 of" in "\n".join(screen_text(app))
        await pilot.press("enter", "n")
        await pilot.pause()
        lines = screen_text(app)
        assert "match 2 of" in "\n".join(lines)
        assert "loader" in "\n".join(lines).lower()
        await pilot.press("escape")
        await pilot.pause()
        assert "match" not in "\n".join(screen_text(app)[-3:])
        await pilot.press("escape")
        await pilot.pause()
        assert app.screen is app.screen_stack[0]


async def test_what_is_typed_into_a_search_is_no_command():
    async with watching(live(*builders.hang())) as (app, pilot):
        await pilot.press("question_mark", "slash", *"qtwn:/")
        await pilot.pause()
        assert app.session.paint.palette.name == "dark"
        assert "not found" in "\n".join(screen_text(app))


async def test_the_keys_of_the_view_in_front_stand_first_in_the_help():
    async with watching(live(builders.healthy()), (120, 40)) as (app, pilot):
        await pilot.press("2", "question_mark")
        await pilot.pause()
        lines = screen_text(app)
        assert lines[2] == "keys of the map view"
        assert any(line.startswith("  m ") and "colour" in line for line in lines[:14])


async def test_the_findings_at_the_top_take_four_rows_and_fold_to_one():
    async with watching(live(*builders.hang(64, 40))) as (app, pilot):
        assert app.screen.banner.size.height <= 4
        await pilot.press("z")
        await pilot.pause()
        assert app.screen.banner.size.height == 1
        assert screen_text(app)[2].startswith("✖ rank 40 has been")
        assert screen_text(app)[3].startswith("RANK")
        await pilot.press("z")
        await pilot.pause()
        assert any("→" in line for line in screen_text(app)[3:6])


class Tape(FakeSource):
    """A source that goes back in time."""

    def travel(self, at_unix_ns):
        self.went = at_unix_ns


async def test_two_keys_go_to_the_first_pictures_of_critical_findings():
    snapshot, verdict = builders.hang()
    marks = tuple((NOW + at * SECOND, what) for at, what in MARKS)
    source = Tape(Look(snapshot, verdict, span=(NOW - 900 * SECOND, NOW + 300 * SECOND)))
    source.shown = replace(source.shown, marks=marks)
    async with watching(source) as (app, pilot):
        await pilot.press("(")
        assert source.went == NOW + 70 * SECOND
        await pilot.press("(")
        assert source.went == NOW - 40 * SECOND
        await pilot.press(")")
        assert source.went == NOW + 70 * SECOND
        source.shown = replace(source.shown, marks=marks[:1])
        app.tick()
        await pilot.press("(")
        assert source.went == NOW + 70 * SECOND
        assert "no critical finding began before this moment" in app.session.notice


MARKS = (
    (-5, "warning"),
    (-400, "shown"),
    (-45, "critical"),
    (-40, "shown"),
    (70, "shown"),
    (9, "gone"),
)


async def test_enter_on_taken_stacks_opens_them_or_says_that_there_are_newer_ones():
    snapshot, verdict = builders.hang()
    async with watching(live(with_stacks(snapshot), verdict)) as (app, pilot):
        await pilot.press("6", "end", "enter")
        await pilot.pause()
        assert isinstance(app.screen, StacksScreen)
        assert any("load_image" in line for line in screen_text(app))
        await pilot.press("escape")
        later = replace(with_stacks(snapshot, request="r2"), time_unix_ns=NOW + SECOND)
        app.session.source.shown = Look(later, verdict)
        app.tick()
        await pilot.press("k", "enter")
        await pilot.pause()
        assert any("newer ones have replaced them" in line for line in screen_text(app))


async def test_a_rank_is_compared_with_a_healthy_one_of_its_group_or_with_the_other_tagged_one():
    async with watching(live(*builders.hang(culprit=5)), (120, 40)) as (app, pilot):
        await pilot.press("=")
        lines = screen_text(app)
        assert lines[2].split() == ["RANK", "5", "0"]
        assert next(line for line in lines if line.startswith("STATE")).split()[1::2] == [
            "✖",
            "■",
        ]
        assert any("where rank 5 is" in line and "where rank 0 is" in line for line in lines)
        await pilot.press("left")
        assert screen_text(app)[2].split() == ["RANK", "5", "7"]
        await pilot.press("left", "left")
        # Never beside itself.
        assert screen_text(app)[2].split() == ["RANK", "5", "4"]
        await pilot.press("escape", "down", "space", "space", "=")
        assert screen_text(app)[2].split() == ["RANK", "0", "1"]


async def test_enter_in_the_help_presses_the_key_under_the_cursor_on_the_screen_below():
    async with watching(live(*builders.hang()), (100, 40)) as (app, pilot):
        await pilot.press("?")
        at = next(at for at, line in enumerate(screen_text(app)) if line.startswith("  d  "))
        await pilot.click(offset=(4, at))
        assert isinstance(app.screen, StacksScreen)
        await pilot.press("escape", "?", "down", "down", "enter")
        assert isinstance(app.screen, StacksScreen)
        await pilot.press("escape", "?", "slash", *"jk", "enter")
        # What is typed into the search runs nothing.
        assert isinstance(app.screen, HelpScreen)


async def test_other_keys_do_what_the_file_says_and_are_shown_everywhere():
    kept = Kept(None, {"keys": {"stacks": "x", "filter": "&"}})
    app = DdtopApp(live(*builders.hang()), JOB, clock=lambda: NOW, glyphs=UNICODE, kept=kept)
    async with app.run_test(size=(100, 40)) as pilot:
        await pilot.pause()
        assert "x stacks  & filter" in screen_text(app)[-1]
        await pilot.press("d")
        assert not isinstance(app.screen, StacksScreen)
        await pilot.press("question_mark")
        await pilot.pause()
        at = next(at for at, line in enumerate(screen_text(app)) if line.startswith("  x  "))
        await pilot.click(offset=(4, at))
        await pilot.pause()
        assert isinstance(app.screen, StacksScreen)
        await pilot.press("escape", "ampersand", "5")
        await pilot.pause()
        assert app.screen.input.value == "5"


async def test_a_click_on_the_time_bar_goes_there_and_the_wheel_a_step_on():
    snapshot, verdict = builders.hang()
    source = Tape(Look(snapshot, verdict, span=(NOW - 100 * SECOND, NOW), travelled=True))
    async with watching(source, (120, 30)) as (app, pilot):
        line = screen_text(app)[2]
        first, last = line.index("─"), line.rindex("█")
        await pilot.click(offset=(first, 2))
        assert source.went == NOW - 100 * SECOND
        await pilot.click(offset=((first + last) // 2, 2))
        assert abs(source.went - (NOW - 50 * SECOND)) < 3 * SECOND
        went = source.went
        await pilot.click(offset=(2, 2))
        assert source.went == went
        await app.screen.past.on_mouse_scroll_up()
        assert source.went == went - 5 * SECOND


async def test_what_is_said_of_one_view_is_not_said_in_the_next():
    async with watching(live(*builders.hang())) as (app, pilot):
        await pilot.press("R")
        assert app.session.notice
        await pilot.press("2")
        assert not app.session.notice


async def test_the_log_of_a_rank_follows_its_end_until_somebody_scrolls_up(tmp_path):
    log = tmp_path / "log"
    log.write_text("".join(f"step {number}\n" for number in range(100)))
    snapshot, verdict = builders.hang()
    ranks = [replace(rank, process={"outputs": (str(log), str(log))}) for rank in snapshot.ranks]
    source = live(replace(snapshot, ranks=tuple(ranks)), verdict)
    async with watching(source, (100, 24)) as (app, pilot):

        async def read_again():
            app.session.tails.wait(10.0)
            app.screen.show_facts()
            await pilot.pause()
            return " ".join(screen_text(app))

        await pilot.press("L")
        assert "step 99" in await read_again()
        assert "step 60 " not in await read_again()
        await pilot.press("slash", *"step 60", "enter")
        assert "match 1 of 1" in await read_again()
        await pilot.press("escape", "home")
        assert "step 99" not in await read_again()
        await pilot.press("end")
        assert "step 99" in await read_again()


async def test_text_is_selected_with_the_mouse_and_copied_when_the_button_is_released():
    async with watching(live(*builders.hang()), (100, 30)) as (app, pilot):
        lines = screen_text(app)
        at = next(at for at, line in enumerate(lines) if "wait for it" in line)
        begin = lines[at].index("wait for it")
        await pilot.mouse_down(offset=(begin, at))
        await pilot.hover(offset=(begin + len("wait for it"), at))
        await pilot.mouse_up(offset=(begin + len("wait for it"), at))
        await pilot.pause()
        assert app.clipboard == "wait for it"
        assert "copied what is selected" in app.session.notice
        row = next(at for at, line in enumerate(screen_text(app)) if "culprit" in line and at > 3)
        await pilot.mouse_down(offset=(0, row))
        await pilot.hover(offset=(16, row + 1))
        await pilot.mouse_up(offset=(16, row + 1))
        await pilot.pause()
        first, second = app.clipboard.split("\n")
        assert first.split()[:3] == ["5", "✖", "culprit"]
        assert second.split() == ["0", "■", "blocked"]


async def test_a_double_click_opens_and_selects_nothing():
    async with watching(live(*builders.hang()), (100, 30)) as (app, pilot):
        row = next(at for at, line in enumerate(screen_text(app)) if "culprit" in line and at > 3)
        await pilot.click(offset=(3, row), times=2)
        assert isinstance(app.screen, RankScreen)
        assert app.clipboard == ""
