"""Films the real demo: python screenshots/film.py

It types `ddtop demo` in a terminal of its own, waits for what a person would wait for, presses `e`
and `d`, and quits. What the terminal got is written as an asciinema recording, `demo.cast`, and as
an animated picture, `demo.gif`, drawn with the monospaced font of this machine (DejaVu). Needs
pyte and pillow: `pip install -e '.[docs,test]'`. `asciinema play screenshots/demo.cast` shows
it in a terminal.
"""

from __future__ import annotations

import codecs
import json
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fcntl import ioctl
from pathlib import Path

import pyte
from PIL import Image, ImageDraw, ImageFont

HERE = Path(__file__).parent
COLUMNS, ROWS = 110, 32
FONTS = Path("/usr/share/fonts/truetype/dejavu")
FONT_PX, COLOURS = 14, 64
DEADLINE_S = 90.0
FRAME_S, LONGEST_S, LAST_S = 0.25, 1.5, 3.0
"""A picture for each change, at most four a second; a still one is shown no longer than this."""
INK, PAPER = "e6e6e6", "121212"
KEYBOARD = re.compile("\x1b\\[[<>=?][0-9;]*u")
"""What a terminal is asked about its keyboard: pyte would print a part of it."""
NAMED = {
    "black": "121212",
    "red": "e06c75",
    "green": "98c379",
    "brown": "e5c07b",
    "blue": "61afef",
    "magenta": "c678dd",
    "cyan": "56b6c2",
    "white": "e6e6e6",
}


@dataclass
class Film:
    """What a terminal got: (seconds since the start, text) each."""

    said: list[tuple[float, str]] = field(default_factory=list)
    screen: pyte.Screen = field(default_factory=lambda: pyte.Screen(COLUMNS, ROWS))

    def __post_init__(self) -> None:
        self._stream = pyte.Stream(self.screen)

    def add(self, at_s: float, text: str) -> None:
        """Show it, and remember it."""
        self.said.append((at_s, text))
        self._stream.feed(KEYBOARD.sub("", text))

    def text(self) -> str:
        """What stands on the screen now."""
        return "\n".join(self.screen.display)


def main() -> None:
    """Film it, and write both files."""
    film = filmed()
    header = {"version": 2, "width": COLUMNS, "height": ROWS, "title": "ddtop demo"}
    lines = [header, *([round(at, 3), "o", text] for at, text in film.said)]
    cast = HERE / "demo.cast"
    cast.write_text("".join(json.dumps(line) + "\n" for line in lines))
    drawn = list(pictures(film.said))
    images = [image.quantize(COLOURS) for image, _ in drawn]
    times = [round(seconds * 1000) for _, seconds in drawn]
    gif = HERE / "demo.gif"
    images[0].save(
        gif, save_all=True, append_images=images[1:], duration=times, loop=0, optimize=True
    )
    print(f"{cast}\n{gif}: {len(images)} pictures, {sum(times) / 1000:.0f} s")


def filmed() -> Film:
    """Play the demo as a person would, in a terminal of its own."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", COLORTERM="truecolor", LANG="C.UTF-8")
        os.environ.pop("NO_COLOR", None)
        os.execv(sys.executable, [sys.executable, "-m", "ddtop", "demo"])
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    film, began = Film(), time.monotonic()
    film.add(0.0, "$ ddtop demo\r\n")
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def watch(seen: Callable[[], bool], more_s: float) -> None:
        """Film until something is seen, and so many seconds more."""
        until, end = None, time.monotonic() + DEADLINE_S
        while until is None or time.monotonic() < until:
            if time.monotonic() > end:
                raise SystemExit(f"it did not come:\n{film.text()}")
            if select.select([terminal], [], [], 0.1)[0]:
                try:
                    data = os.read(terminal, 1 << 16)
                except OSError:
                    return
                film.add(time.monotonic() - began, decoder.decode(data))
            if until is None and seen():
                until = time.monotonic() + more_s

    def press(key: str) -> None:
        os.write(terminal, key.encode())

    try:
        watch(lambda: "it/s" in film.text(), 2.0)
        watch(lambda: "✖" in film.text() and "wait_for_licence" in film.text(), 5.0)
        press("e")
        watch(lambda: "what it means" in film.text(), 4.0)
        press("q")
        watch(lambda: "RANK" in film.text(), 1.0)
        press("d")
        watch(lambda: "misbehave" in film.text(), 5.0)
    finally:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
        os.close(terminal)
    return film


def pictures(said: list[tuple[float, str]]) -> Iterator[tuple[Image.Image, float]]:
    """(the picture, how many seconds it is shown), for each moment at which it differs."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.Stream(screen)
    before, shown_at, due = None, 0.0, 0.0
    moments = [*said, (said[-1][0] + LAST_S, "")]
    for at, text in moments:
        if at >= due and (now := cells(screen)) != before:
            if before is not None:
                yield drawn(before), min(max(at - shown_at, FRAME_S), LONGEST_S)
            before, shown_at, due = now, at, at + FRAME_S
        stream.feed(KEYBOARD.sub("", text))
    if before is not None:
        yield drawn(before), LAST_S


Cells = tuple[tuple[tuple[str, str, str, bool], ...], ...]
"""(character, colour, background, bold) by row and column."""


def cells(screen: pyte.Screen) -> Cells:
    """What stands in each cell, with its colours."""
    rows = []
    for y in range(ROWS):
        row = []
        for x in range(COLUMNS):
            one = screen.buffer[y][x]
            ink, paper = hexed(one.fg, INK), hexed(one.bg, PAPER)
            if one.reverse:
                ink, paper = paper, ink
            row.append((one.data, ink, paper, one.bold))
        rows.append(tuple(row))
    return tuple(rows)


def hexed(colour: str, default: str) -> str:
    """A colour of pyte as six hex digits."""
    return default if colour == "default" else NAMED.get(colour.removeprefix("bright"), colour)


def drawn(rows: Cells) -> Image.Image:
    """The picture of a screen."""
    plain = ImageFont.truetype(FONTS / "DejaVuSansMono.ttf", FONT_PX)
    bold = ImageFont.truetype(FONTS / "DejaVuSansMono-Bold.ttf", FONT_PX)
    width, height = round(plain.getlength("x")), FONT_PX + 4
    image = Image.new("RGB", (width * COLUMNS + 16, height * ROWS + 16), f"#{PAPER}")
    draw = ImageDraw.Draw(image)
    for y, row in enumerate(rows):
        for x, (text, ink, paper, is_bold) in enumerate(row):
            left, top = 8 + x * width, 8 + y * height
            if paper != PAPER:
                draw.rectangle((left, top, left + width - 1, top + height - 1), f"#{paper}")
            if text.strip():
                draw.text((left, top), text, f"#{ink}", font=bold if is_bold else plain)
    return image


if __name__ == "__main__":
    main()
