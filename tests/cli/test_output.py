"""Terminals on which the dashboard cannot be drawn, and characters that the output can hold."""

import os
import subprocess
import sys

import pytest

from ddtop.cli.output import no_dashboard


@pytest.fixture
def on_a_terminal(monkeypatch):
    for stream in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True)


@pytest.mark.parametrize("term", ["xterm", "screen", "linux", "vt100", "xterm-mono"])
def test_it_can_be_drawn_on_every_terminal_with_a_cursor(monkeypatch, on_a_terminal, term):
    monkeypatch.setenv("TERM", term)

    assert no_dashboard() is None


@pytest.mark.parametrize("term", ["dumb", "", None])
def test_a_terminal_that_only_prints_lines_gets_lines(monkeypatch, on_a_terminal, term):
    if term is None:
        monkeypatch.delenv("TERM", raising=False)
    else:
        monkeypatch.setenv("TERM", term)

    assert no_dashboard() == "TERM=dumb"


def test_redirected_errors_mean_no_dashboard(monkeypatch, on_a_terminal):
    """Textual draws on standard error, so `ddtop 2>log` would fill the log and show nothing."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr.isatty", lambda: False)

    assert no_dashboard() == "standard error is redirected, and the dashboard is drawn there"


@pytest.mark.parametrize(
    ("encoding", "sign"), [("latin-1", "X"), ("ascii", "X"), ("utf-8", "\u2716")]
)
def test_an_output_that_has_no_signs_gets_letters_and_no_traceback(encoding, sign, home):
    """cron on a host with the encoding ISO-8859-1."""
    found = subprocess.run(
        [sys.executable, "-m", "ddtop", "--sim", "4", "--scenario", "rank-killed"],
        env={**os.environ, "PYTHONIOENCODING": encoding},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    lines = found.stdout.decode(encoding).splitlines()

    assert (found.returncode, lines[1].split()[:2]) == (0, [sign, "rank"]), found.stderr.decode()
