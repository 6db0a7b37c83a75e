"""Suspending, resuming and ending: the state in which the shell and the terminal are left."""

import os
import shlex
import shutil
import signal
import sys
from contextlib import ExitStack, closing

import pytest

from tests.ui.terminals import HANG, Terminal, picture

MODES = (1049, 1000, 1003, 1006, 2004)
"""The other screen, the mouse, pastes in brackets."""
CURSOR = 25
SHELL = """
import os
os.execvp("bash", ["bash", "--norc", "--noprofile", "--noediting", "-i"])
"""


@pytest.fixture
def terminal():
    def open_one(program=HANG, **environment):
        colours = {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
        return ends.enter_context(closing(Terminal(program, **(colours | environment))))

    with ExitStack() as ends:
        yield open_one


def given_back(one):
    return one.cooked() and one.mode(CURSOR) and not any(one.mode(number) for number in MODES)


def taken(one):
    return not one.cooked() and not one.mode(CURSOR) and all(one.mode(number) for number in MODES)


@pytest.fixture
def shell(terminal):
    """A real shell, in which the dashboard was typed."""
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    one = terminal(SHELL, PS1="ready> ", HISTFILE="")
    one.until("ready> ")
    one.press(f"{shlex.quote(sys.executable)} -c {shlex.quote(HANG)}\n")
    one.ready()
    yield one
    # An interactive shell ignores SIGTERM, and ends its jobs when its terminal closes.
    one.hang_up()
    assert one.ended() is not None


def is_back_and_ends(shell):
    """The dashboard has the terminal, shows the job, hears keys, and gives all back."""
    shell.ready()
    shell.when(lambda: taken(shell), "the terminal")
    shell.shows(picture((80, 24)))
    shell.press("?")
    shell.until("keys of the ranks view")
    shell.press("qq")
    shell.when(lambda: given_back(shell), "the shell's terminal")


def test_ctrl_z_gives_the_terminal_to_the_shell_and_fg_takes_it_back(shell):
    assert taken(shell)
    shell.press("\x1a")
    shell.until("Stopped")
    assert given_back(shell)

    shell.press("echo $((6*7))\n")
    shell.until("42")
    shell.press("fg\n")
    is_back_and_ends(shell)


def test_a_stop_that_nobody_announces_is_survived_too(shell):
    """SIGSTOP from another window: the shell takes the terminal, whose settings are then not
    ours.
    """
    (pid,) = children(shell.process.pid)
    os.kill(pid, signal.SIGSTOP)
    shell.until("Stopped")
    shell.press("stty sane; echo $((6*7))\n")
    shell.until("42")
    shell.press("fg\n")
    is_back_and_ends(shell)


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(word) for word in file.read().split()]


def test_without_a_shell_to_go_back_to_ctrl_z_stops_nothing(terminal):
    """If the dashboard is the terminal's first command, no shell could resume it."""
    one = terminal()
    one.ready()
    before = len(one.sent)
    one.press("\x1a")
    one.when(lambda: b"\x1b[?1049l" in one.sent[before:] and taken(one), "the dashboard again")
    one.press("?")
    one.until("keys of the ranks view")


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["term", "int"]
)
def test_who_is_told_to_end_gives_the_terminal_back_first(terminal, number, status):
    one = terminal()
    one.ready()
    one.signal(number)

    assert one.ended() == status
    assert given_back(one)


@pytest.mark.parametrize(
    "ignored",
    ["", "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)"],
    ids=["", "nohup"],
)
def test_with_its_terminal_the_dashboard_ends(terminal, ignored):
    """Otherwise it would read the end of the closed terminal for ever, on a whole core."""
    one = terminal(ignored + HANG)
    one.ready()
    one.hang_up()

    assert one.ended() == 129
