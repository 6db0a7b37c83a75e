"""Walls that import contracts cannot hold: where text, calls and names may stand."""

import ast
from collections import defaultdict
from pathlib import Path

import ddtop

ROOM = Path(ddtop.__file__).parent
TREES = {path.relative_to(ROOM): ast.parse(path.read_text()) for path in ROOM.rglob("*.py")}


def in_folder(*parts):
    return {path: tree for path, tree in TREES.items() if path.parts[: len(parts)] == parts}


def called(tree):
    """The names of what is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func).rpartition(".")[2]


def test_a_rule_writes_no_text():
    """A finding is data; `say/` has its words."""
    with_text = {
        f"{path}:{node.lineno}"
        for path, tree in in_folder("diagnosis", "rules").items()
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
    }

    assert with_text == set()


def test_the_diagnosis_reads_no_text_by_patterns_but_for_the_limits_in_its_pages():
    """What an exception of a library says is a fact: `model/errors.py`."""
    assert imports("re", in_folder("diagnosis")) == {Path("diagnosis/page.py")}


def test_the_text_of_a_finding_is_read_by_no_pattern():
    """Whoever leaves out a part of it gets its parts: `Finding.said`. Patterns are for what people
    type (filter), names of groups and paths (groups, report), and how words wrap (text)."""
    assert imports("re", in_folder("say")) == set()
    assert imports("re", in_folder("present")) == {
        Path("present", name) for name in ("filter.py", "groups.py", "report.py", "text.py")
    }


def imports(name, trees):
    return {
        path
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Import) and name in [one.name for one in node.names]
    }


def test_what_a_rank_does_is_decided_in_one_file():
    makes = {path for path, tree in TREES.items() if "Does" in called(tree)}

    assert makes == {Path("model/account.py")}


def test_no_two_public_classes_have_one_name():
    found = defaultdict(list)
    for path, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path))

    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}
