"""Does a text name the place of the fault? Also in a copy of the program with other names."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from zoo.case import Case, CaseError

_MARK = re.compile(r"#\s*place:\s*(\S+)")
_FILE_LINE = re.compile(r"([\w.+-]+\.py):(\d+)")


class Places:
    """The places of a case in the program that runs.

    Args:
        case: its `place` names functions, marked lines and other files.
        running: the program, or its renamed copy.
        renamed: the name in the copy of a name in the program.

    Raises:
        CaseError: the program has no such function or marked line.
    """

    def __init__(
        self, case: Case, running: Path, renamed: Callable[[str], str] = lambda name: name
    ) -> None:
        self._file = running.name
        self._lines: set[int] = set()
        self._names: set[str] = set()
        original = _tree(case.program)
        copy = original if running == case.program else ast.parse(running.read_text())
        self._files = {place for place in case.place if place.endswith(".py")}
        for place in (one for one in case.place if one not in self._files):
            if place.startswith("@"):
                self._lines |= _marked(case, place[1:], original, copy)
                continue
            name = renamed(place)
            found = [node for node in _functions(copy) if node.name == name]
            if not found:
                raise CaseError(f"{case.program.name}, {case.name}: no function named {place}")
            self._names.add(name)
            for node in found:
                self._lines |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))

    def __bool__(self) -> bool:
        return bool(self._lines or self._files)

    def named_in(self, text: str) -> bool:
        """Whether the text has a line of the place as `file:line`, or says "in FUNCTION"."""
        for file, line in _FILE_LINE.findall(text):
            if file in self._files or (file == self._file and int(line) in self._lines):
                return True
        return any(re.search(rf"\bin {re.escape(name)}\b", text) for name in self._names)


@functools.cache
def _tree(program: Path) -> ast.Module:
    return ast.parse(program.read_text())


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def _marked(case: Case, name: str, original: ast.Module, copy: ast.Module) -> set[int]:
    """Lines in the copy of what stands on the marked lines of the program: renaming changes no
    statement, so both have the same statements in the same order, but for the dict of cases.
    """
    marks = {
        number
        for number, line in enumerate(case.program.read_text().splitlines(), 1)
        if (found := _MARK.search(line)) and found[1] == name
    }
    before, after = (_statements(tree) for tree in (original, copy))
    if len(before) != len(after):
        raise CaseError(f"{case.program.name}, {case.name}: the copy has other statements")
    lines = {
        line
        for one, other in zip(before, after, strict=True)
        if one.lineno in marks
        for line in range(other.lineno, _head_end(other) + 1)
    }
    if not lines:
        raise CaseError(f"{case.program.name}, {case.name}: no line has `# place: {name}`")
    return lines


def _statements(tree: ast.Module) -> list[ast.stmt]:
    body = [node for node in tree.body if not ast.unparse(node).startswith("CASES = ")]
    return [
        node
        for top in body
        for node in ast.walk(top)
        if isinstance(node, ast.stmt) and not _is_docstring(node)
    ]


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _head_end(node: ast.stmt) -> int:
    """The last line of a statement, without the block that it opens."""
    body = getattr(node, "body", None)
    return body[0].lineno - 1 if body else (node.end_lineno or node.lineno)
