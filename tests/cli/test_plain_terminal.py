"""Where the dashboard cannot be drawn, and why."""

from __future__ import annotations

import pytest

from ddtop.cli.looking import plain_terminal


@pytest.fixture
def on_a_terminal(monkeypatch):
    for stream in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True)


@pytest.mark.parametrize("term", ["xterm", "screen", "linux", "vt100", "xterm-mono"])
def test_it_can_be_drawn_on_every_terminal_with_a_cursor(monkeypatch, on_a_terminal, term):
    monkeypatch.setenv("TERM", term)

    assert plain_terminal() is None


@pytest.mark.parametrize("term", ["dumb", "", None])
def test_a_terminal_that_only_prints_lines_gets_lines(monkeypatch, on_a_terminal, term):
    if term is None:
        monkeypatch.delenv("TERM", raising=False)
    else:
        monkeypatch.setenv("TERM", term)

    assert plain_terminal() == "TERM=dumb"


def test_who_redirects_errors_does_not_look_at_an_empty_screen(monkeypatch, on_a_terminal):
    """Textual draws on standard error: `ddtop 2>log` would fill the log and show nothing."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr.isatty", lambda: False)

    assert plain_terminal() == "standard error leads elsewhere, and there the dashboard would be drawn"
