"""The app on a real terminal: effects that a headless test cannot see."""

import fcntl
import io
import os
import select
import signal
import sys
import termios
import threading
import time
from contextlib import closing

import pytest

from ddtop.ui.terminal.terminal import whole_writes
from tests.ui.moving import INTERVAL_S, LAST, Moving
from tests.ui.terminals import CLEAN, Terminal, picture
from tests.waiting import until


def colours(screen):
    return {screen.buffer[y][x].fg for y in range(24) for x in range(80)} | {
        screen.buffer[y][x].bg for y in range(24) for x in range(80)
    }


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [
        ({"TERM": "xterm-256color"}, True),
        ({"TERM": "screen"}, True),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, False),
    ],
    ids=["256", "16", "no-color"],
)
def test_it_starts_shows_the_verdict_and_leaves_the_terminal(environment, coloured):
    with closing(Terminal(**environment)) as terminal:
        lines = terminal.ready()
        assert lines[2].startswith("✖ rank 5 has been in the DataLoader")
        assert any(line.split()[:3] == ["5", "✖", "culprit"] for line in lines)
        # Without colours everything has the terminal's own colours. Otherwise text could be black
        # on black.
        assert (colours(terminal.screen) == {"default"}) is not coloured
        terminal.press("/state:blocked\r")
        terminal.until("filter state:blocked, 7 of 8 ranks")
        terminal.press("q")
        assert terminal.ended() == 0


@pytest.mark.parametrize(
    ("term", "culprit"),
    [
        ("linux", "X culprit"),
        ("vt100", "X culprit"),
        ("xterm-mono", "✖ culprit"),
        ("tmux-256color", "✖ culprit"),
    ],
)
def test_other_terminals_get_signs_that_their_fonts_have(term, culprit):
    with closing(Terminal(TERM=term)) as terminal:
        lines = terminal.ready()
        assert any(culprit in line for line in lines)
        assert (colours(terminal.screen) == {"default"}) is (term == "xterm-mono")


@pytest.mark.parametrize("size", [(1, 1), (20, 5), (39, 24), (80, 9)], ids=str)
def test_a_terminal_that_is_too_small_is_told_so_and_returns(size):
    with closing(Terminal(size=size, TERM="xterm-256color", COLORTERM="truecolor")) as terminal:
        # One cell has room for the first letter only.
        terminal.until("too small"[: size[0]])
        terminal.resize((80, 24))
        # Frames of the previous size may come first. The last frame must be right, cell by cell.
        terminal.shows(picture((80, 24)))
        terminal.resize(size)
        terminal.until("too small"[: size[0]])
        terminal.press("q")
        assert terminal.ended() == 0


@pytest.mark.parametrize("size", [(40, 10), (120, 40), (200, 50), (250, 70)], ids=str)
def test_a_storm_of_resizes_leaves_the_picture_of_the_last_size(size):
    with closing(Terminal(TERM="xterm-256color", COLORTERM="truecolor")) as terminal:
        terminal.ready()
        for step in range(12):
            terminal.resize((60 + step * 7, 12 + step * 3))
            terminal.read(0)
        terminal.resize(size)
        terminal.shows(picture(size))


def test_a_write_that_is_cut_short_is_written_to_its_end_also_without_a_buffer(monkeypatch):
    """Images for containers set PYTHONUNBUFFERED. When such a container was paused in the middle of
    a frame, half of the frame was missing.
    """
    reads, writes = os.pipe()
    signal.signal(signal.SIGUSR1, lambda *_: None)
    text, came = "x" * 1_000_000, bytearray()
    try:
        with io.TextIOWrapper(io.FileIO(writes, "w"), encoding="utf-8", write_through=True) as bare:
            monkeypatch.setattr(sys, "__stderr__", bare)
            with whole_writes():
                file = sys.__stderr__
                thread = threading.Thread(target=lambda: (file.write(text), file.flush()))
                thread.start()
                # It blocks in the middle of its write as soon as the pipe is full.
                until(lambda: queued(reads) == fcntl.fcntl(reads, fcntl.F_GETPIPE_SZ), 60)
                signal.pthread_kill(thread.ident, signal.SIGUSR1)
                while len(came) < len(text) and (thread.is_alive() or queued(reads)):
                    came += (
                        os.read(reads, 65536) if select.select([reads], [], [], 0.01)[0] else b""
                    )
                thread.join()
            assert sys.__stderr__ is bare
    finally:
        os.close(reads)
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)

    assert len(came) == len(text)


def queued(descriptor):
    """Bytes that have not been read."""
    return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_what_others_write_onto_the_terminal_is_gone_after_ctrl_l():
    with closing(Terminal(TERM="xterm-256color")) as terminal:
        terminal.ready()
        terminal.scribble("\x1b[5;3HBroadcast message from root: \x1b[3;12r\x1b(0\x1b[7m")
        terminal.press("\x0c")
        terminal.when(lambda: CLEAN in terminal.sent, "a new picture")
        lines = terminal.ready()
        assert not any("Broadcast" in line for line in lines)
        assert lines[2].startswith("✖ rank 5 has been in the DataLoader")
        terminal.scribble("Broadcast")
        terminal.press("?")
        assert not any("Broadcast" in line for line in terminal.until("keys of the ranks view"))


FAST = """
import os
from tests.ui.builders import JOB
from tests.ui.moving import INTERVAL_S, Moving
from ddtop.ui.app import DdtopApp
app = DdtopApp(Moving(open(os.environ["TOLD"], "w")), JOB)
app.session.interval_s = INTERVAL_S
app.run()
"""


@pytest.mark.parametrize("differ", ["1", "0"], ids=["differ", "plain"])
def test_a_terminal_that_takes_nothing_stops_nobody(tmp_path, differ):
    """An ssh connection hangs: the loop goes on, few frames are queued, every key counts once, and
    the last frame is right.
    """
    told = tmp_path / "told"
    os.mkfifo(told)
    looks = open(os.open(told, os.O_RDWR), "rb", buffering=0)  # noqa: SIM115 - closed below, after its writer
    size = (120, 40)
    terminal = Terminal(
        FAST,
        size,
        TERM="xterm-256color",
        COLORTERM="truecolor",
        TOLD=str(told),
        DDTOP_DIFFER=differ,
    )
    try:
        terminal.ready()
        begun = len(terminal.sent)
        for _ in range(3):
            terminal.press("j")
        # Nothing is read from the terminal until the app has looked so often. With the differ the
        # pictures are so small that the kernel keeps them all, but for some that are sent whole.
        for number in range(10, LAST, 5):
            assert waited_for(looks, number)
            terminal.press("\x0c")
        assert waited_for(looks, LAST)
        terminal.press("j")
        assert waited_for(looks, LAST + 20)
        terminal.shows(picture(size, Moving(looks=LAST), "jjjj", INTERVAL_S))
        # The kernel keeps 64 KB, Textual's queue a few pictures of up to 20 KB; plain Textual draws
        # 0.8 MB in all.
        assert len(terminal.sent) - begun < 300_000
    finally:
        terminal.close()
        looks.close()


def waited_for(looks, number):
    """Whether the app has looked this many times within a minute."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if select.select([looks], [], [], 1.0)[0] and int(looks.readline() or 0) >= number:
            return True
    return False
