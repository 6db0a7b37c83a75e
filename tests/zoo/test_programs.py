"""A few jobs of the verdict benchmark, under names that mean nothing: `python -m
tests.benchmarks --only verdicts` runs all.
"""

from __future__ import annotations

import ast

import pytest

from tests.zoo import bench
from tests.zoo.cases import CASES, FAULTS, HEALTHY
from tests.zoo.rename import Renamed

SEED = 11
FEW = ("own-lock", "passed-over", "ring", "raises", "struck", "ends-well")


@pytest.mark.torch
@pytest.mark.parametrize("name", FEW)
def test_what_a_viewer_reads_is_right_and_nothing_before_it_was_wrong(name):
    pytest.importorskip("torch")

    outcome = bench.run(CASES[name], SEED)

    assert outcome.right, bench.line(outcome)
    assert outcome.named_s is None or outcome.named_s <= bench.SECONDS_BAR_S


def test_a_renamed_program_keeps_none_of_its_own_names(tmp_path):
    """A rule that knows a script by a function's name would be right about the demo and about
    nothing else.
    """
    program = bench.PROGRAMS / "ddp.py"
    shapes = {case.shape for case in CASES.values() if case.program == "ddp"}

    copy = Renamed(program, shapes, SEED, tmp_path)

    kept = {
        node.name
        for node in ast.walk(ast.parse(copy.path.read_text()))
        if isinstance(node, ast.FunctionDef)
    }
    assert kept & (shapes | {"mark"}) == set()
    assert copy.argument("tries_again") in kept
    assert "tries_again" not in copy.path.read_text()


def test_every_shape_that_a_case_asks_for_is_in_its_program():
    for case in CASES.values():
        text = (bench.PROGRAMS / f"{case.program}.py").read_text()
        assert f"def {case.shape}(" in text or f'"{case.shape}"' in text, case.name


def test_the_bench_has_at_least_thirty_faults_and_fifteen_healthy_jobs():
    assert len(CASES) == len(FAULTS) + len(HEALTHY)
    assert len(FAULTS) >= 30
    assert len(HEALTHY) >= 15
