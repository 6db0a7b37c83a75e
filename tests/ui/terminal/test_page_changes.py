"""What a terminal shows between two pages: the page before, and never an empty one."""

from __future__ import annotations

import pyte
import pytest

from tests.ui.terminals import Grid, Terminal

ANSWER = "\x1b[?2026;2$y"
"""Of a terminal that shows an update as a whole."""
UPDATE_ENDS = b"\x1b[?2026l"
CHANGES = ("e", "\x1b", "?", "\x1b", "\r", "\x1b", *"23456123456", "e", "?", "\x1b", "\x1b", "1")


def filled(screen: pyte.Screen) -> int:
    """How many of its cells are not blank."""
    return sum(not character.isspace() for line in screen.display for character in line)


def updates(sent: bytes, whole: bool) -> list[bytes]:
    """What a terminal shows at once: a whole update, or the bytes of one read."""
    if whole:
        return sent.split(UPDATE_ENDS)
    return [sent[at : at + 256] for at in range(0, len(sent), 256)]


@pytest.mark.job
@pytest.mark.parametrize("whole", [True, False])
def test_between_two_pages_the_screen_is_never_blank(whole):
    terminal = Terminal(size=(100, 30))
    replayed = Grid(100, 30)
    stream = pyte.ByteStream(replayed)
    read = 0
    try:
        if whole:
            terminal.press(ANSWER)
            terminal.when(lambda: UPDATE_ENDS in terminal.sent, "a whole update")
        terminal.ready()
        for key in CHANGES:
            while terminal.read(0.3):
                pass
            stream.feed(bytes(terminal.sent[read:]))
            read, before = len(terminal.sent), list(terminal.screen.display)
            old = filled(terminal.screen)
            assert filled(replayed) == old
            terminal.press(key)
            terminal.when(lambda: terminal.screen.display != before, f"the page after {key!r}")  # noqa: B023
            while terminal.read(0.3):
                pass
            least = min(old, filled(terminal.screen))
            for update in updates(bytes(terminal.sent[read:]), whole):
                stream.feed(update)
                assert filled(replayed) > (0.9 if whole else 0.5) * least, (key, replayed.display)
            read = len(terminal.sent)
    finally:
        terminal.close()
