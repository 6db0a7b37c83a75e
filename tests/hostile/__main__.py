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

    def page(self) -> str:
        """A line for each subject, and one for each attack that was not held or not tried."""
        lines = ["| subject | what holds | attacks |", "|---|---|---|"]
        for module in sorted({module for module, _ in self.rows}):
            outcomes = [self.outcome(key) for key in self.rows if key[0] == module]
            held = sum(outcome.startswith(HELD) for outcome in outcomes)
            subject = _sentence(module.removeprefix("test_"))
            lines.append(
                f"| {subject} | {self.subjects.get(module, '')} | {held} of {len(outcomes)} held |"
            )
        lines += [
            f"\n- {_sentence(key[1])}: {self.outcome(key)}"
            for key in self.rows
            if not self.outcome(key).startswith(HELD)
        ]
        return "\n".join(lines) + "\n"

    def text(self) -> str:
        """Each attack and its outcome, as Markdown."""
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
        target.write_text(_HEAD.format(python=platform.python_version()) + table.page())
    return int(code)


_HEAD = """# What was tried against ddtop

`python -m tests.hostile` tries each attack of `tests/hostile` and prints a line for each: the name
of a test is the sentence. An attack may be made in several ways. After each attack on a relay an
honest rank and an honest viewer are served as before, and at the end the relay ends by itself.

This page was made by `python -m tests.hostile --write docs/explanation/hostile.md`, with Python
{python}. Some attacks need root, FUSE or torch; where that is missing they are listed as not tried.
`python -m tests.hostile.fuzz --minutes 10` feeds random input to all code that reads records, state
pages, orders and recordings.

"""

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
