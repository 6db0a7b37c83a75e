"""Signals from the dashboard: chosen, asked once more, and sent only after `y`."""

import signal
from contextlib import asynccontextmanager

import pytest

from ddtop.present.help_text import SIGNALS
from ddtop.present.text import UNICODE
from ddtop.ui.app import DdtopApp
from ddtop.ui.screens.main import MainScreen
from ddtop.ui.screens.signals import SignalsScreen
from ddtop.ui.screens.stacks import StacksScreen
from ddtop.wire.records import Exit
from tests.ui import builders
from tests.ui.builders import JOB, NOW, live
from tests.ui.changed import replace
from tests.ui.screens import screen_text, watching

HANG, VERDICT = builders.hang()


@asynccontextmanager
async def readonly(source):
    app = DdtopApp(source, JOB, clock=lambda: NOW, glyphs=UNICODE, readonly=True)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        yield app, pilot


async def sent(app, pilot):
    """Waits until the worker that sends has ended."""
    await pilot.pause()
    for worker in [one for one in app.workers if one.name == "signal"]:
        await worker.wait()
    app.tick()
    await pilot.pause()


async def test_a_signal_is_chosen_confirmed_and_sent():
    source = live(HANG, VERDICT)
    async with watching(source) as (app, pilot):
        await pilot.press("f9", "down", "down", "down", "up", "enter")
        question = screen_text(app)
        assert source.signals == []
        await pilot.press("y")
        await sent(app, pilot)

        assert "send SIGINT to rank 5?" in question
        assert "  rank 5  pid 4805  node000  train.py" in question
        assert source.signals == [(5, signal.SIGINT)]
        assert isinstance(app.screen, MainScreen)
        assert "sent signal 2 to rank 5" in screen_text(app)


@pytest.mark.parametrize("key", ["n", "enter", "escape", "q", "Y", "space", "p"])
async def test_every_other_key_is_a_no(key):
    source = live(HANG, VERDICT)
    async with watching(source) as (app, pilot):
        await pilot.press("f9", "down", "enter", key, "y")
        await pilot.pause()

        assert source.signals == []
        assert app.screen.chosen is None
        assert "a signal to rank 5" in screen_text(app)


async def test_what_is_typed_faster_than_the_screen_is_drawn_is_understood():
    source = live(HANG, VERDICT)
    async with watching(source) as (app, pilot):
        await pilot.press("f9", "down", "down", "enter", "n", "enter", "y")
        await sent(app, pilot)

        assert source.signals == [(5, signal.SIGINT)]


async def test_stacks_by_signal_are_the_first_choice_and_the_question_says_what_they_disturb():
    source = live(HANG, VERDICT)
    async with watching(source) as (app, pilot):
        await pilot.press("f9", "enter")
        question = screen_text(app)
        assert source.asked == []
        await pilot.press("y")
        await pilot.pause()

        assert "take the stacks of rank 5 by signal?" in question
        assert "returns early" in " ".join(question)
        assert (source.asked, source.asked_by_signal, source.signals) == ([(5,)], [True], [])
        assert isinstance(app.screen, StacksScreen)
        # Asked again, without the question, the rank gets no signal.
        await pilot.press("d")
        await pilot.pause()
        assert source.asked_by_signal == [True, False]
        await pilot.press("escape")
        assert isinstance(app.screen, MainScreen)


async def test_no_to_stacks_by_signal_asks_nobody():
    source = live(HANG, VERDICT)
    async with watching(source) as (_, pilot):
        await pilot.press("f9", "enter", "n", "escape")

        assert (source.asked, source.signals) == ([], [])


async def test_the_palette_finds_stacks_by_signal():
    source = live(HANG, VERDICT)
    async with watching(source) as (app, pilot):
        await pilot.press("ctrl+p", *"stacks", "space", *"by", "space", *"signal", "enter")
        await pilot.pause()

        assert isinstance(app.screen, SignalsScreen)
        assert "stacks" in next(line for line in screen_text(app) if "by signal" in line)


async def test_escape_leaves_the_menu_without_sending():
    source = live(HANG, VERDICT)
    async with watching(source) as (app, pilot):
        await pilot.press("s", "escape")
        assert isinstance(app.screen, MainScreen)

        await pilot.press("y")
        assert source.signals == []


async def test_all_tagged_ranks_get_it_and_the_result_is_one_sentence():
    source = live(HANG, VERDICT)
    async with watching(source) as (app, pilot):
        await pilot.press("space", "space", "f9", "down", "enter", "y")
        await sent(app, pilot)

        assert source.signals == [(0, signal.SIGTERM), (5, signal.SIGTERM)]
        assert any(line.startswith("sent SIGTERM to 2 of 2 ranks") for line in screen_text(app))


async def test_a_refusal_of_the_relay_is_shown():
    source = live(HANG, VERDICT)
    source.refuses = "no signal was sent: rank 5 with pid 4805 is not running here (any more)"
    async with watching(source) as (app, pilot):
        await pilot.press("f9", "down", "enter", "y")
        await sent(app, pilot)

        assert (
            "no signal was sent: rank 5 with pid 4805 is not running here (any more)"
            in screen_text(app)
        )


async def test_readonly_says_why_there_is_no_menu():
    source = live(HANG, VERDICT)
    async with readonly(source) as (app, pilot):
        await pilot.press("f9")
        text = " ".join(screen_text(app))
        await pilot.press("enter", "y")

        assert "started with --readonly" in text
        assert source.signals == []


async def test_a_rank_that_is_gone_cannot_get_one():
    gone = replace(
        HANG.ranks[5],
        process={"exit": Exit(5, 4805, 1, None, False, 0, "pidfd"), "exit_unix_ns": NOW},
    )
    snapshot = replace(HANG, ranks=(*HANG.ranks[:5], gone, *HANG.ranks[6:]))
    source = live(snapshot, VERDICT)
    async with watching(source) as (app, pilot):
        await pilot.press("f9")

        assert "rank 5: no process is left" in screen_text(app)
        await pilot.press("enter", "y")
        assert source.signals == []


async def test_a_rank_that_became_another_process_while_the_question_stood_gets_none():
    """An elastic restart came between the question and the answer. The person meant the process
    that was shown.
    """
    source = live(HANG, VERDICT)
    async with watching(source) as (app, pilot):
        await pilot.press("f9", "down", "enter")
        hello = builders.hello(5)
        other = replace(
            HANG.ranks[5],
            hello=type(hello)(
                **{name: getattr(hello, name) for name in hello.__struct_fields__} | {"pid": 99}
            ),
        )
        source.shown = replace(
            source.shown, snapshot=replace(HANG, ranks=(*HANG.ranks[:5], other, *HANG.ranks[6:]))
        )
        app.tick()
        await pilot.press("y")
        await sent(app, pilot)

        assert source.signals == []
        assert any("another process now" in line for line in screen_text(app))


async def test_a_ranks_page_offers_signals_to_that_rank():
    async with watching(live(HANG, VERDICT)) as (app, pilot):
        await pilot.press("enter", "right", "f9")

        assert isinstance(app.screen, SignalsScreen)
        assert app.screen.numbers == (6,)


def test_every_signal_of_the_menu_is_explained_once():
    assert len({one for one, _ in SIGNALS}) == len(SIGNALS)
    assert all(meaning for _, meaning in SIGNALS)


def app_of():
    return DdtopApp(live(HANG, VERDICT), JOB, clock=lambda: NOW, glyphs=UNICODE)


@pytest.mark.parametrize(
    "keys",
    [["f9"], ["f9", "enter"], ["f9", "down", "down", "enter"]],
    ids=["menu", "stacks", "question"],
)
def test_picture(snap_compare, keys):
    # Before that the menu may still be without its height; 300 ms were too short beside other work.
    assert snap_compare(app_of(), terminal_size=(80, 24), press=[*keys, "wait:1000"])
