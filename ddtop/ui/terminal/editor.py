"""Opens a file in the user's editor; meanwhile the dashboard leaves the terminal to it."""

from __future__ import annotations

import os
import shlex
import subprocess

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
