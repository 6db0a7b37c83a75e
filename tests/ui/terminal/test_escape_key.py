"""Esc and the next key in one packet."""

from contextlib import closing

import pytest
from textual import events

from ddtop.ui.terminal import terminal as escape_key
from tests.ui.terminals import Terminal


def keys(data):
    parser = escape_key.Parser()
    # The end of the input stands for the timeout after which a sequence counts as complete.
    tokens = [*parser.feed(data), *parser.feed("")]
    return [token.key for token in tokens if isinstance(token, events.Key)]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("\x1bd", ["escape", "d"]),
        ("\x1bf", ["escape", "f"]),
        ("\x1b1", ["escape", "1"]),
        ("\x1bD", ["escape", "D"]),
        ("\x1b\r", ["escape", "enter"]),
        ("\x1b?", ["escape", "question_mark"]),
        ("\x1b[A", ["up"]),
        ("\x1b[1;2A", ["shift+up"]),
        ("\x1bOP", ["f1"]),
    ],
)
def test_esc_and_a_key_are_two_keys_and_a_sequence_is_one(data, expected):
    assert keys(data) == expected


def test_a_page_is_left_and_the_next_key_obeyed_though_they_come_at_once():
    with closing(Terminal(TERM="xterm-256color")) as terminal:
        terminal.ready()
        terminal.press("?")
        terminal.until("keys of the ranks view")
        terminal.press("\x1b2")
        terminal.until("1 culprit: rank 5")
