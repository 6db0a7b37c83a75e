"""Copies of the programs in which files, functions and variables have names that mean nothing.

A rule must know facts, not scripts: under other names the verdicts have to be the same.
"""

from __future__ import annotations

import ast
import random
import string
from collections.abc import Iterable
from pathlib import Path

_KEPT = {"main", "__name__"}


class Renamed:
    """A renamed copy of one program, in `folder`; `name` tells the new name of a function, or of
    what is given on the command line.
    """

    def __init__(self, program: Path, shapes: Iterable[str], seed: int, folder: Path) -> None:
        # One seed for all programs would give the first function of each the same name.
        self._random = random.Random(f"{seed} {program.stem}")
        tree = ast.parse(program.read_text())
        # What the bench reads of the program is not for the job.
        tree.body = [node for node in tree.body if not _is_cases(node)]
        names = sorted(_own_names(tree) | set(shapes))
        self._new = {name: self._word() for name in names}
        self.path = folder / f"{self._word()}.py"
        self.path.write_text(
            ast.unparse(ast.fix_missing_locations(_Renamer(self._new).visit(tree)))
        )

    def name(self, word: str) -> str:
        """What `word` is called in the copy."""
        return self._new.get(word, word)

    def _word(self) -> str:
        return "".join(self._random.choices(string.ascii_lowercase, k=7)) + "_"


def _is_cases(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CASES"


def _own_names(tree: ast.Module) -> set[str]:
    """Functions, classes and variables of the program; not methods, which torch calls, and not
    parameters.
    """
    bodies = [
        item for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for item in node.body
    ]
    methods = {id(item) for item in bodies}
    # What a class's body assigns is an attribute, and other code uses its old name.
    taken = _KEPT | {
        target.id
        for item in bodies
        if isinstance(item, ast.Assign)
        for target in item.targets
        if isinstance(target, ast.Name)
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and id(node) not in methods:
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            taken.add(node.arg)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            taken |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return {name for name in found - taken if not name.startswith("_")}


class _Renamer(ast.NodeTransformer):
    def __init__(self, new: dict[str, str]) -> None:
        self._new = new

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self._new.get(node.id, node.id)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = self._new.get(node.name, node.name)
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.name = self._new.get(node.name, node.name)
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        # The shape on the command line is the name of a function, or compared with a text.
        if isinstance(node.value, str):
            node.value = self._new.get(node.value, node.value)
        return node
