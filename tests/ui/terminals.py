"""Terminals to look at: pyte's, in memory or at the other end of a pty."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterable

import pyte
import pytest

from ddtop.ui.app import DdtopApp
from tests.ui.builders import JOB, FakeSource, hang, live

HANG = """
from tests.ui import builders
from ddtop.ui.app import DdtopApp
DdtopApp(builders.live(*builders.hang()), builders.JOB).run()
"""
WITHOUT = (
    "NO_COLOR",
    "COLORTERM",
    "TEXTUAL_COLOR_SYSTEM",
    "TEXTUAL",
    "TEXTUAL_DRIVER",
    "DDTOP_DIFFER",
)

LIMIT_S = 60.0
"""A picture of 250x70 takes a loaded machine its time; who waits for one comes back as soon as it
is there."""


class Grid(pyte.Screen):
    """A screen that also knows dim characters; they are kept as blinking ones, of which we have
    none."""

    def select_graphic_rendition(self, *attrs: int) -> None:
        wanted: list[int] = []
        rest = list(attrs)
        while rest:
            code = rest.pop(0)
            if code in (38, 48):
                kind = rest.pop(0)
                length = 3 if kind == 2 else 1
                wanted += [code, kind, *rest[:length]]
                del rest[:length]
            else:
                wanted += {2: [5], 22: [22, 25]}.get(code, [code])
        super().select_graphic_rendition(*wanted)


def differences(one: Grid, other: Grid) -> list[str]:
    """Where two screens differ, in words; empty if they are the same."""
    return [
        f"line {y} column {x}: {one.buffer[y][x]} there {other.buffer[y][x]}"
        for y in range(max(one.lines, other.lines))
        if one.buffer[y] != other.buffer[y]
        for x in range(max(one.columns, other.columns))
        if one.buffer[y][x] != other.buffer[y][x]
    ]


class Terminal:
    """A program on a terminal, and what it has drawn there.

    `sent` is all that the program wrote. The program leads a session of its own, as under a shell's
    terminal.
    """

    def __init__(
        self, program: str = HANG, size: tuple[int, int] = (80, 24), **environment: str
    ) -> None:
        self._master, slave = pty.openpty()
        self.screen = Grid(*size)
        self.sent = bytearray()
        self._stream = pyte.ByteStream(self.screen)
        self._set_size(size)
        inherited = {name: value for name, value in os.environ.items() if name not in WITHOUT}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CONTROLLED, program],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**inherited, **environment},
            start_new_session=True,
        )
        self._slave: int | None = slave

    def _set_size(self, size: tuple[int, int]) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))

    def read(self, seconds: float = 0.1) -> bool:
        """Read what has arrived, waiting at most this long; False if nothing arrived."""
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:
            return False
        self.sent += data
        # pyte takes the keyboard protocol's `CSI < u` for text; it is none. And it knows one screen
        # only: the other one begins empty.
        data = data.replace(b"\x1b[<u", b"").replace(b"\x1b[>25u", b"")
        self._stream.feed(data.replace(b"\x1b[?1049h", b"\x1b[?1049h\x1b[2J"))
        return True

    def when(self, done: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> list[str]:
        """The lines of the screen as soon as the condition holds."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            self.read()
            if done():
                return list(self.screen.display)
        pytest.fail(f"{what} did not come:\n" + "\n".join(self.screen.display))

    def until(self, text: str, limit_s: float = LIMIT_S) -> list[str]:
        """The lines of the screen as soon as the text is on it."""
        return self.when(
            lambda: any(text in line for line in self.screen.display), repr(text), limit_s
        )

    def ready(self) -> list[str]:
        """The lines of the screen as soon as a main screen with a verdict is complete on it."""
        return self.when(self._whole, "the main screen")

    def shows(self, wanted: Grid) -> None:
        """Returns as soon as every cell is as in that screen."""
        end = time.monotonic() + LIMIT_S
        while differences(self.screen, wanted) and time.monotonic() < end:
            self.read()
        found = differences(self.screen, wanted)
        assert not found, f"{len(found)} cells are wrong: {found[:3]}"

    def _whole(self) -> bool:
        verdict = self.screen.display[2].startswith(("✖ rank 5", "X rank 5"))
        return verdict and self.screen.display[-1].startswith("? help")

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def scribble(self, text: str) -> None:
        """Another program writes to the terminal, between two pictures: a kernel does not part what
        a program writes at once, but a read may."""
        while self.read(0.3):
            pass
        self._stream.feed(text.encode())

    def resize(self, size: tuple[int, int]) -> None:
        """Another size, as when a window is resized."""
        self.screen.resize(size[1], size[0])
        self._set_size(size)

    def signal(self, number: signal.Signals) -> None:
        """Sent to the program alone, by its pid."""
        self.process.send_signal(number)

    def state(self) -> str:
        """The program's state letter of /proc: T is stopped."""
        with open(f"/proc/{self.process.pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0]

    def cooked(self) -> bool:
        """The terminal is as a shell wants it: lines, and an echo."""
        flags = termios.tcgetattr(self._master)[3]
        return bool(flags & termios.ICANON) and bool(flags & termios.ECHO)

    def mode(self, number: int) -> bool:
        """Whether the program's last change of that private mode switched it on."""
        return self.sent.rfind(b"\x1b[?%dh" % number) > self.sent.rfind(b"\x1b[?%dl" % number)

    def hang_up(self) -> None:
        """The window is closed."""
        if self._slave is not None:
            os.close(self._slave)
            self._slave = None
        os.close(self._master)
        self._master = -1

    def ended(self, limit_s: float = 10.0) -> int | None:
        """The exit status of a program that ends by itself; None if it does not end."""
        end = time.monotonic() + limit_s
        while self.process.poll() is None and time.monotonic() < end:
            if self._master < 0:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(0.1)
            else:
                # The last output must be read, or the program waits for room.
                self.read()
        while self._master >= 0 and self.read(0.05):
            pass
        return self.process.poll()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for end in (self._master, self._slave):
            if end is not None and end >= 0:
                os.close(end)


CLEAN = b"\x1b[2J"
"""With this a screen that is drawn anew begins."""


def picture(
    size: tuple[int, int],
    source: FakeSource | None = None,
    keys: Iterable[str] = (),
    interval_s: float = 0.5,
) -> Grid:
    """What the app shows of a source (a hang) after some keys: drawn whole, by plain Textual,
    without a terminal."""

    async def draw() -> str:
        app = DdtopApp(source or live(*hang()), JOB)
        async with app.run_test(size=size) as pilot:
            # This is only written at the foot of the screen: an app that looks all the time is
            # never idle.
            app.session.interval_s = interval_s
            app.tick()
            await pilot.pause()
            for key in keys:
                await pilot.press(key)
            await pilot.pause()
            return app.screen._compositor.render_full_update().render_segments(app.console)

    grid = Grid(*size)
    pyte.Stream(grid).feed("\x1b[?7l" + asyncio.run(draw()))
    return grid


_CONTROLLED = """
import fcntl, sys, termios
# The terminal is the session's own, as under a shell: only then does closing it end what runs there.
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
program = sys.argv.pop(1)
exec(compile(program, "program", "exec"), {"__name__": "__main__"})
"""  # noqa: E501
