"""Which settings of a person's dashboard are kept, and that no content of the file can break the
next dashboard.
"""

import json
import os
import stat
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtop.present.filter import BY_VERDICT
from ddtop.present.text import UNICODE
from ddtop.ui import session
from ddtop.ui.app import DdtopApp
from ddtop.ui.session import Kept, Setup
from tests.ui import builders
from tests.ui.builders import JOB, NOW, live
from tests.ui.screens import screen_text, shown_ranks


@pytest.fixture
def path(tmp_path, monkeypatch):
    """The path of the settings; the folder does not exist yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "ddtop" / "setup.json"


@asynccontextmanager
async def dashboard(size=(120, 30)):
    """As the command starts it."""
    app = DdtopApp(
        live(*builders.hang()), JOB, clock=lambda: NOW, glyphs=UNICODE, kept=session.kept()
    )
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        yield app, pilot


async def test_what_was_chosen_is_there_the_next_time(path):
    async with dashboard() as (app, pilot):
        await pilot.press(
            "t", "i", "F", "c", "space", "escape", "slash", *"rank:2", "enter", "plus", "3"
        )
        await pilot.pause()
    async with dashboard() as (app, pilot):
        assert any(line.startswith("GROUP") for line in screen_text(app))
        await pilot.press("1")
        await pilot.pause()
        titles = next(line for line in screen_text(app) if line.startswith("RANK"))

        assert shown_ranks(app) == [2]
        assert app.session.setup.room == session.PANELS
        assert app.session.paint.palette.name == "light"
        assert app.session.interval_s == 1.0
        assert app.session.setup.follow
        assert "HOST" not in titles.split()
        assert "following" in screen_text(app)[-2]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in path.parent.iterdir()] == ["setup.json"]


async def test_the_rank_at_fault_is_on_top_the_next_time_however_rows_were_sorted_before(path):
    """A column was of interest for one job. At night the same person looks at another one."""
    async with dashboard() as (app, pilot):
        before = shown_ranks(app)
        await pilot.click("TitleRow", offset=(2, 0))
        await pilot.pause()
        sorted_by_rank = shown_ranks(app)
    async with dashboard() as (app, _):
        assert shown_ranks(app) == before
        assert before[0] == 5
    assert sorted_by_rank[0] == 0
    assert not path.exists()


async def test_who_changes_nothing_gets_no_file(path):
    async with dashboard() as (app, _):
        app.tick()

    assert not path.parent.exists()


async def test_no_colour_wins_over_a_theme_that_was_kept(path, monkeypatch):
    Kept(path).save(Setup(theme="light"))
    monkeypatch.setenv("NO_COLOR", "1")
    async with dashboard() as (app, _):
        assert app.session.paint.palette.name == "mono"
    assert json.loads(path.read_text())["theme"] == "light"


async def test_what_this_version_does_not_know_is_passed_over(path):
    """Another version has other columns, themes and fields."""
    path.parent.mkdir(parents=True)
    path.write_text(
        '{"theme":"solarized","sort":"xid","descending":true,"hidden":["xid"],"interval_s":0.1,"new":[]}'
    )
    async with dashboard() as (app, _):
        assert app.session.paint.palette.name == "dark"
        assert (app.screen.ranks.sort_key, app.screen.ranks.descending) == (BY_VERDICT, False)
        assert app.session.interval_s == 0.5
        assert app.session.notice == ""


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"interval_s":"fast"}', '{"schema":"another/7"}', "\x00" * 99]
)
async def test_a_file_that_is_broken_or_anothers_is_reported_once_and_left_alone(path, text):
    path.parent.mkdir(parents=True)
    path.write_text(text)
    async with dashboard() as (app, pilot):
        notice = app.session.notice
        await pilot.press("t")
        app.tick()
        await pilot.pause()

    assert notice.startswith(f"your setup file is ignored and left unchanged: {path}")
    assert path.read_text() == text


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_file_is_not_waited_for(path, kind):
    path.parent.mkdir(parents=True)
    path.mkdir() if kind == "folder" else os.mkfifo(path)

    assert Kept(path).problem.startswith("your setup file is ignored")


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    found = Kept(tmp_path / "file" / "ddtop" / "setup.json")
    found.save(Setup(theme="light"))

    assert found.problem is None


def test_a_link_to_a_file_elsewhere_stays_a_link(path, tmp_path):
    """People keep their dotfiles in a repository."""
    (tmp_path / "dotfiles.json").write_text("{}")
    path.parent.mkdir(parents=True)
    path.symlink_to(tmp_path / "dotfiles.json")
    Kept(path).save(Setup(theme="light"))

    assert path.is_symlink()
    assert json.loads((tmp_path / "dotfiles.json").read_text())["theme"] == "light"


def test_without_a_home_or_with_a_relative_one_nothing_breaks(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", "config")
    monkeypatch.setenv("HOME", str(tmp_path))
    session.kept().save(Setup(theme="light"))

    assert (tmp_path / ".config" / "ddtop" / "setup.json").exists()


@given(
    st.binary(max_size=200)
    | st.builds(
        lambda value: json.dumps(value).encode(),
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(["theme", "hidden", "interval_s", "follow", "schema"]),
                    inner,
                    max_size=4,
                )
            ),
            max_leaves=8,
        ),
    )
)
def test_any_bytes_are_a_setup_or_a_sentence(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any-setup.json"
    path.write_bytes(data)
    found = Kept(path)

    assert isinstance(found.setup, Setup)
    assert found.problem is None or str(path) in found.problem


def test_what_the_config_file_says_holds_at_the_start_and_is_not_kept(tmp_path):
    path = tmp_path / "setup.json"
    Kept(path).save(Setup(theme="light", follow=False))
    found = Kept(path, {"theme": "dark", "hidden": ("rss",)})
    assert (found.setup.theme, found.setup.hidden) == ("dark", ("rss",))

    found.save(Setup(theme="mono", hidden=("rss", "pid"), follow=True))

    assert Kept(path).setup == Setup(theme="light", follow=True)
