"""Files of the screen: a picture or text of it, and the editor for a line of source."""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from textual.app import App

# -- Saves the screen as a file: a picture (SVG) or text


SVG, TEXT = "svg", "txt"
_REMOTE_FONTS = re.compile(r"\n    @font-face \{.*?\}(?=\n)", re.DOTALL)
"""Rich loads fonts from a content delivery network; our pictures load nothing."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def screen_text(app: App[Any]) -> str:
    """The lines of the screen without colours. Uses a part of Textual that is not public, as its
    own screenshot does."""
    width, height = app.size
    console = Console(
        width=width, height=height, file=io.StringIO(), record=True, color_system=None
    )
    console.print(app.screen._compositor.render_update(full=True))
    return "\n".join(line.rstrip() for line in console.export_text().splitlines()).rstrip() + "\n"


def save_screen(app: App[Any], job: str, kind: str, unix_ns: int) -> Path:
    """Write the screen to a new file that only its owner can read, in the working folder, else in
    the home folder.

    Raises:
        OSError: neither folder can be written.
    """
    data = (
        screen_text(app)
        if kind == TEXT
        else _REMOTE_FONTS.sub("", app.export_screenshot(title="ddtop"))
    )
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(unix_ns / 1e9))
    name = f"ddtop-{_UNSAFE.sub('_', job)}-{stamp}"
    try:
        return _new_file(Path.cwd(), name, kind, data)
    except OSError:
        return _new_file(Path.home(), name, kind, data)


def _new_file(folder: Path, name: str, kind: str, data: str) -> Path:
    for number in range(1, 100):
        path = folder / (f"{name}.{kind}" if number == 1 else f"{name}-{number}.{kind}")
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            continue
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(data)
        return path
    raise FileExistsError(17, "a hundred files from this second already exist", str(folder))


# -- Opens a file in the user's editor; meanwhile the dashboard leaves the terminal to it


COLON = frozenset({"subl", "hx", "helix", "micro", "zed"})
GOTO = frozenset({"code", "codium", "cursor", "windsurf"})
"""Editors that accept `FILE:LINE`, and those that need `--goto` before it. All others accept
`+LINE`."""


def editor_command(file: str, line: int, environment: dict[str, str] | None = None) -> list[str]:
    """The command that opens this line: `$VISUAL`, else `$EDITOR`, else `vi`."""
    environment = dict(os.environ) if environment is None else environment
    chosen = environment.get("VISUAL") or environment.get("EDITOR") or "vi"
    try:
        words = shlex.split(chosen) or ["vi"]
    except ValueError:
        words = [chosen]
    name = os.path.basename(words[0])
    if name in GOTO:
        return [*words, "--goto", f"{file}:{line}"]
    if name in COLON:
        return [*words, f"{file}:{line}"]
    return [*words, f"+{line}", file]


def run_editor(command: list[str]) -> str | None:
    """Run it until it ends; returns a sentence if that failed."""
    try:
        code = subprocess.run(command, check=False).returncode
    except OSError as error:
        return f"{command[0]} cannot be started: {error.strerror}; set EDITOR"
    return f"{command[0]} ended with exit code {code}" if code else None
