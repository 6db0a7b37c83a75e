"""The app on a real terminal: what a headless test cannot see."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time

import pyte
import pytest

PROGRAM = """
from tests.ui import builders
from ddtop.ui.app import DdtopApp
DdtopApp(builders.live(*builders.hang()), builders.JOB).run()
"""
WITHOUT = ("NO_COLOR", "COLORTERM", "TEXTUAL_COLOR_SYSTEM", "TEXTUAL", "TEXTUAL_DRIVER")


class Terminal:
    """A program on a terminal of 80 by 24, and what it has drawn there."""

    def __init__(self, **environment: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.screen = pyte.Screen(80, 24)
        self._stream = pyte.ByteStream(self.screen)
        inherited = {name: value for name, value in os.environ.items() if name not in WITHOUT}
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**inherited, **environment},
            start_new_session=True,
        )
        os.close(slave)

    def until(self, text: str, limit_s: float = 20.0) -> list[str]:
        """The lines of the screen as soon as the text is on it."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            if select.select([self._master], [], [], 0.1)[0]:
                try:
                    # pyte takes the keyboard protocol's `CSI < u` for text; it is none.
                    self._stream.feed(os.read(self._master, 65536).replace(b"\x1b[<u", b""))
                except OSError:
                    break
            if any(text in line for line in self.screen.display):
                return list(self.screen.display)
        pytest.fail(f"{text!r} did not come:\n" + "\n".join(self.screen.display))

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def ended(self, limit_s: float = 10.0) -> int | None:
        """The exit status of a program that ends by itself, None where it does not."""
        end = time.monotonic() + limit_s
        while self.process.poll() is None and time.monotonic() < end:
            # The last words must be taken, or the program waits for room.
            if select.select([self._master], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):
                    os.read(self._master, 65536)
        return self.process.poll()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)


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
    terminal = Terminal(**environment)
    try:
        lines = terminal.until("? help")
        assert lines[1].startswith("✖ rank 5 has been in the DataLoader")
        assert lines[7].split()[:3] == ["5", "✖", "culprit"]
        # Without colours everything is in the terminal's own, else text could be black on black.
        assert (colours(terminal.screen) == {"default"}) is not coloured
        terminal.press("/state:blocked\r")
        terminal.until("filter state:blocked, 7 of 8 ranks")
        terminal.press("q")
        assert terminal.ended() == 0
    finally:
        terminal.close()
