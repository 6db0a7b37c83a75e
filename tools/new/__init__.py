"""Writes what a new thing of ddtop begins with, from one template each: `finding.txt`.

A template has parts. `=== FILE` begins a new file, `=== FILE above 'TEXT'` what is put above that
text, which must be in the file once, and `=== then` says what to do next. In all of them `$kind` is
the name, for example `too-big`; `$module` is `too_big`, `$CONSTANT` `TOO_BIG`, `$Class` `TooBig`.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from string import Template

TEMPLATES = Path(__file__).parent
_PART = re.compile(r"^=== (\S+)(?: above (.+))?\n", re.MULTILINE)
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


class CannotWriteError(Exception):
    """Nothing was written. The text says why."""


def write(what: str, name: str, root: Path) -> tuple[list[str], str]:
    """The files below `root` that were written or changed, and what to do then.

    Raises:
        CannotWriteError: there is no such template, the name cannot be one, a file exists already,
            or a text is not in its file once.
    """
    template = TEMPLATES / f"{what}.txt"
    if not template.exists() or _NAME.fullmatch(name) is None:
        raise CannotWriteError(
            f"there is no template {what}, or {name!r} is not a name like too-big"
        )
    words = {
        "kind": name,
        "module": name.replace("-", "_"),
        "CONSTANT": name.replace("-", "_").upper(),
        "Class": name.title().replace("-", ""),
    }
    _, *parts = _PART.split(Template(template.read_text(encoding="utf-8")).substitute(words))
    texts: dict[str, str] = {}
    for file, above, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        texts[file] = text if above is None else _above(root, file, texts, above, text)
        if above is None and (root / file).exists():
            raise CannotWriteError(f"{file} exists already")
    then = texts.pop("then")
    for file, text in texts.items():
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(text, encoding="utf-8")
    return list(texts), then


def _above(root: Path, file: str, texts: dict[str, str], quoted: str, text: str) -> str:
    """The file with `text` in it."""
    old, mark = (
        texts.get(file) or (root / file).read_text(encoding="utf-8"),
        ast.literal_eval(quoted),
    )
    if old.count(mark) != 1:
        raise CannotWriteError(f"{file} has {quoted} {old.count(mark)} times")
    return old.replace(mark, text + mark)
