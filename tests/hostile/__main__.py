"""`python -m tests.hostile [--write FILE] [PYTEST OPTION ...]`: tries every attack, and prints what
was tried and whether it held.

A row is a test: its name is the sentence. Exit code 0: all that was tried held.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

HELD, BROKEN, UNTRIED = "held", "BROKEN", "not tried"
FOLDER = Path(__file__).parent


class Table:
    """Collects the outcome of each test. A parametrised test is one row. pytest calls its
    methods.
    """

    def __init__(self) -> None:
        self.subjects: dict[str, str] = {}
        self.rows: dict[tuple[str, str], list[tuple[str, str]]] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Function]) -> None:
        """The subject of a file is the first paragraph of its docstring."""
        for item in items:
            text = " ".join((item.module.__doc__ or "").strip().split("\n\n")[0].split())
            self.subjects[item.module.__name__.rpartition(".")[2]] = text
            self.rows.setdefault(_row(item.nodeid), [])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Set-up and teardown count too: the relay must be alive at the end of an attack."""
        if report.failed:
            outcome = BROKEN
        elif report.skipped:
            outcome = UNTRIED
        elif report.when == "call":
            outcome = HELD
        else:
            return
        why = (
            str(report.longrepr[2]).removeprefix("Skipped: ")
            if isinstance(report.longrepr, tuple)
            else ""
        )
        self.rows.setdefault(_row(report.nodeid), []).append((outcome, why))

    def outcome(self, key: tuple[str, str]) -> str:
        """The outcome in a word or two: `held`, `held (7 ways)`."""
        found = self.rows[key]
        words = [word for word, _ in found]
        if BROKEN in words:
            return BROKEN
        held = words.count(HELD)
        if not held:
            return f"{UNTRIED}: {found[0][1]}" if found else UNTRIED
        return HELD if held == 1 else f"{HELD} ({held} ways)"

    def text(self) -> str:
        """The page, as Markdown."""
        lines = []
        for module in sorted({module for module, _ in self.rows}):
            lines += [
                "",
                f"## {_sentence(module.removeprefix('test_'))}",
                "",
                self.subjects.get(module, ""),
                "",
            ]
            lines += ["| tried | result |", "|---|---|"]
            lines += [
                f"| {_sentence(key[1])} | {self.outcome(key)} |"
                for key in self.rows
                if key[0] == module
            ]
        return "\n".join(lines).lstrip("\n") + "\n"


def _row(nodeid: str) -> tuple[str, str]:
    path, _, name = nodeid.partition("::")
    return Path(path).stem, name.partition("[")[0].removeprefix("test_")


def _sentence(name: str) -> str:
    text = name.replace("_", " ")
    return text[:1].upper() + text[1:]


def main(arguments: list[str]) -> int:
    """Run them; the exit code."""
    target = None
    if arguments[:1] == ["--write"]:
        target, arguments = Path(arguments[1]), arguments[2:]
    table = Table()
    options = ["-q", "--no-header", "-p", "no:cacheprovider", *arguments]
    code = pytest.main([*options, str(FOLDER)], plugins=[table])
    text = table.text()
    print(text)
    if target is not None:
        target.write_text(_HEAD.format(python=platform.python_version()) + text)
    return int(code)


_HEAD = """# What was tried against ddtop

This page is made by `python -m tests.hostile --write docs/hostile.md` (here with Python {python}). Each row is a test in
`tests/hostile`: an attack, a fault of a file system, or another host that lies. After each attack on a relay, an honest rank and an honest viewer are
served as before, and at the end the relay ends by itself.

- `python -m tests.hostile` runs all of them and prints this table. `-k folders` and other options of pytest may follow.
- `python -m tests.hostile.fuzz --minutes 10` feeds random and malformed input to all code that reads records, state pages, orders, the
  bridge and journals, and reports exceptions and growth of memory.
- Some tests need root, FUSE or torch. Where that is missing, the row says "not tried" and why.

"""  # noqa: E501

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
