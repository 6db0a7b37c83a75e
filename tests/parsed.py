"""The code of ddtop as trees, parsed once in each process that runs tests."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "ddtop"


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file, the module first."""
    return tuple(ast.walk(tree(path)))


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def called(node: ast.AST) -> str:
    """The name of what a call calls: `os.path.join`; of an expression what is behind it; empty if
    this is no call. `ast.unparse` takes ten times as long.
    """
    names = []
    part = node.func if isinstance(node, ast.Call) else None
    while isinstance(part, ast.Attribute):
        names.append(part.attr)
        part = part.value
    if isinstance(part, ast.Name):
        names.append(part.id)
    return ".".join(reversed(names))


def package() -> dict[str, tuple[ast.AST, ...]]:
    """The nodes of each file of ddtop, by its path in the package."""
    return {
        path.relative_to(PACKAGE).as_posix(): nodes(path) for path in sorted(PACKAGE.rglob("*.py"))
    }
