"""What no text of `say/` may have."""

import ast
import re
from pathlib import Path

import pytest

import ddtop
from tests.parsed import tree

FILES = sorted((Path(ddtop.__file__).parent / "say").rglob("*.py"))
READ_BY_OURSELVES = re.compile(
    r"\blsof\b|\bfuser\b|\bss -|\bps -|\bstrace\b|ls -l /proc|cat /proc|py-spy dump(?! --native)"
)
"""Commands whose answer ddtop could read itself. py-spy is named where C code must be seen."""


def texts(module):
    """The texts of the code, without docstrings and comments."""
    docs = {id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr)}
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_advice_names_a_command_whose_answer_ddtop_could_read_itself(path):
    found = [text for text in texts(tree(path)) if READ_BY_OURSELVES.search(text)]

    assert found == []
