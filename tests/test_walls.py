"""Walls that import contracts cannot hold: where text, calls and names may stand."""

import ast
from collections import defaultdict

from tests.parsed import called, package


def in_folder(folder):
    return {path: nodes for path, nodes in package().items() if path.startswith(f"{folder}/")}


def test_a_rule_writes_no_text():
    """A finding is data; `say/` has its words."""
    with_text = {
        f"{path}:{node.lineno}"
        for path, nodes in in_folder("diagnosis/rules").items()
        for node in nodes
        if isinstance(node, ast.JoinedStr)
    }

    assert with_text == set()


def test_the_diagnosis_reads_no_text_by_patterns_but_for_the_limits_in_its_pages():
    """What an exception of a library says is a fact: `model/errors.py`."""
    assert imports("re", in_folder("diagnosis")) == {"diagnosis/page.py"}


def test_the_text_of_a_finding_is_read_by_no_pattern():
    """Whoever leaves out a part of it gets its parts: `Finding.said`. Patterns are for what people
    type (filter), names of groups and paths (groups, report), and how words wrap (text)."""
    assert imports("re", in_folder("say")) == set()
    assert imports("re", in_folder("present")) == {
        f"present/{name}.py" for name in ("filter", "groups", "report", "text")
    }


def imports(name, files):
    return {
        path
        for path, nodes in files.items()
        for node in nodes
        if isinstance(node, ast.Import) and name in [one.name for one in node.names]
    }


def test_what_a_rank_does_is_decided_in_one_file():
    makes = {path for path, nodes in package().items() if "Does" in map(called, nodes)}

    assert makes == {"model/account.py"}


def test_no_two_public_classes_have_one_name():
    found = defaultdict(list)
    for path, (module, *_) in package().items():
        for node in module.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path)

    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}
