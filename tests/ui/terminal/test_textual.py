"""What ddtop uses of Textual that is not public, and what happens in a release without it."""

import inspect
import sys

from textual._xterm_parser import XTermParser
from textual.drivers import linux_driver
from textual.screen import Screen

import ddtop.ui.terminal
from ddtop.ui.terminal import terminal


def test_a_release_without_the_compositor_is_drawn_its_own_way(monkeypatch):
    monkeypatch.delattr(ddtop.ui.terminal, "differ", raising=False)
    monkeypatch.setitem(sys.modules, "ddtop.ui.terminal.differ", None)

    differ, why = terminal._differ()

    assert differ is None
    assert "ddtop.ui.terminal.differ" in why


def test_a_release_that_reads_keys_otherwise_keeps_its_parser(monkeypatch):
    monkeypatch.setattr(linux_driver, "XTermParser", XTermParser)
    monkeypatch.setattr(XTermParser, "_sequence_to_key_events", lambda self, text: [])

    assert not terminal.install()
    assert linux_driver.XTermParser is XTermParser


def test_a_release_without_a_queue_of_writes_is_never_behind():
    assert terminal.TerminalApp().waiting_writes == 0


def test_this_release_tells_a_screen_its_size_as_expected():
    """`SizedScreen` overrides it. Under another name the override would never be called."""
    assert [*inspect.signature(Screen._screen_resized).parameters] == ["self", "size"]
