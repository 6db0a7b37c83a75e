"""The programs of the zoo, and a few of them as real jobs under names that mean nothing:
`python -m zoo` runs all.
"""

import ast
import functools

import pytest

from zoo.catalogue import PROGRAMS, all_cases, cases_of
from zoo.rename import Renamed
from zoo.report import SECONDS_BAR_S, line
from zoo.run import Options, run
from zoo.tools.ddtop import Ddtop

SEED = 11
FEW = ("own-lock", "passed-over", "ring", "raises", "struck", "ends-well")


@pytest.mark.job
@pytest.mark.torch
@pytest.mark.parametrize("name", FEW)
def test_what_a_viewer_reads_is_right_and_nothing_before_it_was_wrong(name):
    outcome = run(all_cases()[name], Ddtop(), Options(seed=SEED))

    assert outcome.right, line(outcome)
    assert outcome.named_s is None or outcome.named_s <= SECONDS_BAR_S


def test_a_renamed_program_keeps_none_of_its_own_names(tmp_path):
    """A rule that knows a script by a function's name would be right about the demo and about
    nothing else.
    """
    program = PROGRAMS / "ddp.py"
    shapes = {case.shape for case in cases_of(program)}

    copy = Renamed(program, shapes, SEED, tmp_path)

    kept = {
        node.name
        for node in ast.walk(ast.parse(copy.path.read_text()))
        if isinstance(node, ast.FunctionDef)
    }
    assert kept & (shapes | {"mark"}) == set()
    assert copy.name("tries_again") in kept
    assert "tries_again" not in copy.path.read_text()
    assert "CASES" not in copy.path.read_text()


@functools.cache
def without_cases(program):
    """A shape must not be found in its own declaration."""
    tree = ast.parse(program.read_text())
    tree.body = [node for node in tree.body if not ast.unparse(node).startswith("CASES = ")]
    return ast.unparse(tree)


def test_every_shape_that_a_case_asks_for_is_in_its_program():
    for case in all_cases().values():
        text = without_cases(case.program)
        assert f"def {case.shape}(" in text or f"'{case.shape}'" in text, case.name


def test_every_case_has_a_story_and_every_fault_says_when_it_begins():
    for case in all_cases().values():
        assert case.story.endswith("."), case.name
        text = case.program.read_text()
        assert case.healthy or "fault_unix_ns" in text, case.name
        assert case.act is None or '"ready"' in text, case.name


def test_no_fault_that_was_in_the_zoo_has_gone():
    cases = all_cases().values()

    assert sum(not case.healthy for case in cases) >= 190
    assert sum(case.healthy for case in cases) >= 80
