"""The table of rules is complete, and agrees with the kinds, the pages and the docs."""

import ast
import json
from dataclasses import fields
from pathlib import Path

import pytest

from ddtop.diagnosis import rules
from ddtop.diagnosis.explain import PAGES
from ddtop.diagnosis.kinds import Kind
from ddtop.diagnosis.table import TABLE
from ddtop.model.facts import Snapshot
from tests.jobs import trained
from tests.parsed import nodes, tree

FILES = {
    path.stem: path for path in Path(rules.__file__).parent.glob("*.py") if path.stem != "__init__"
}


def file_of(row):
    return row.rule.__module__.rpartition(".")[2]


def test_each_file_in_rules_has_rows_and_each_row_a_name_of_its_own():
    assert {file_of(row) for row in TABLE} == set(FILES)
    assert len({row.name for row in TABLE}) == len(TABLE)


def test_each_rule_in_a_file_has_a_row():
    written = {
        (name, node.name)
        for name, path in FILES.items()
        for node in tree(path).body
        if isinstance(node, ast.FunctionDef)
        and [one.arg for one in node.args.args] == ["context"]
        and ast.unparse(node.returns) == "list[Finding]"
        and not node.name.startswith("_")
    }

    assert written == {(file_of(row), row.rule.__name__) for row in TABLE}


def test_table_enum_and_pages_have_the_same_kinds():
    in_table = {kind for row in TABLE for kind in row.kinds}

    assert in_table == set(Kind)
    assert list(PAGES) == list(Kind)


def named_in(path):
    """The members of Kind in the code of a rule."""
    for node in nodes(path):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "Kind"
        ):
            yield Kind[node.attr], node


@pytest.mark.parametrize("name", FILES)
def test_the_rules_of_a_file_report_the_kinds_of_their_rows(name):
    path = FILES[name]
    kinds = {kind for row in TABLE if file_of(row) == name for kind in row.kinds}
    reported = {
        keyword.value.attr
        for node in nodes(path)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "kind" and isinstance(keyword.value, ast.Attribute)
    }

    assert {kind for kind, _ in named_in(path)} >= kinds
    assert {Kind[one] for one in reported} <= kinds


@pytest.mark.parametrize("name", FILES)
def test_no_text_of_a_rule_is_a_kind(name):
    """A rule says Kind.RANK_STOPPED, so that a wrong name is found by the type checker. Its rows
    name other rules."""
    texts = {
        node.value
        for part in tree(FILES[name]).body
        if not ast.unparse(part).startswith("ROWS = ")
        for node in ast.walk(part)
        if isinstance(node, ast.Constant)
    }

    assert {text for text in texts if isinstance(text, str)} & {
        kind.value for kind in Kind
    } == set()


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_a_row_is_silenced_by_rules_above_it(row):
    above = [one.name for one in TABLE[: TABLE.index(row)]]

    assert set(row.silenced_by) | set(row.leaves_out) <= set(above)
    assert set(row.needs) <= {field.name for field in fields(Snapshot)}
    assert all(condition.__doc__ for condition in row.unless)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_each_rule_has_the_same_signature(row):
    code = row.rule.__code__

    assert code.co_varnames[: code.co_argcount] == ("context",)
    if row.fold is not None:
        assert row.fold.__module__ == row.rule.__module__


def test_a_kind_is_its_value_in_text_json_and_comparisons():
    """Scripts, recordings and old viewers use the values."""
    kind = Kind.RANK_STOPPED

    assert kind == "rank-stopped"
    assert {kind: 1}["rank-stopped"] == 1
    assert (str(kind), f"{kind}") == ("rank-stopped", "rank-stopped")
    assert f"{kind:<14}|" == "rank-stopped  |"
    assert json.dumps({"kind": kind}) == '{"kind": "rank-stopped"}'


def test_every_finding_has_a_kind_of_the_enum():
    job = trained(2)
    job.ranks[1].is_stopped()

    assert type(job.passes(6).finding().kind) is Kind
