"""A sentence and the NOW column name the same thing in the same words."""

import pytest

from ddtop.model.account import activity_text
from ddtop.model.facts import State
from ddtop.present.now import now_text
from ddtop.wire.records import Place
from ddtop.words.sentences import OF_THREAD, P2P, WAITS
from tests.ui import builders
from tests.ui.changed import replace

HERE = Place("step", "/home/ada/train.py", 88, since_unix_ns=builders.NOW)


def stuck(waits_on):
    """A rank at fault, whose main thread is inside `waits_on` of a library."""
    return replace(
        builders.healthy_rank(0),
        state=State.CULPRIT,
        reported={"activity": "other", "place": replace(HERE, waits_on=waits_on)},
        comm={"open_calls": ()},
    )


@pytest.mark.parametrize("waits_on", WAITS)
def test_the_column_has_the_words_of_the_sentence(waits_on):
    rank = stuck(waits_on)
    cell = now_text(rank).removesuffix(" train.py:88")

    assert all(word in activity_text(rank) for word in cell.split())


@pytest.mark.parametrize("one", [*OF_THREAD.values(), P2P], ids=lambda one: one.word)
def test_a_cell_is_made_of_the_words_of_its_phrase(one):
    assert all(word in one.phrase for word in one.cell.split())


def test_an_event_loop_is_an_event_loop_in_both():
    """The sentence said `event loop` and the column said `asyncio`."""
    rank = stuck("asyncio")

    assert activity_text(rank) == "waiting in its event loop"
    assert now_text(rank) == "event loop train.py:88"


def test_a_word_of_a_newer_agent_is_shown_as_it_came():
    assert now_text(stuck("semaphore")) == "semaphore train.py:88"
