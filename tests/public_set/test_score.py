"""How an answer about a program of the public set is judged."""

from __future__ import annotations

from typing import Any

import pytest

from zoo.public_set.programs import Program
from zoo.public_set.score import measures, table, verdict
from zoo.public_set.table import Row

ROW = Row("call p2p", 2, "wait", "01", "")
FAULTY, CORRECT = (Program("job5", ROW, faulty, "", (7, 9)) for faulty in (True, False))


def finding(**more: Any) -> dict[str, Any]:
    """One that is right about FAULTY."""
    made = {"kind": "wait-cycle", "severity": "critical", "ranks": [0, 1]}
    return {
        **made,
        "summary": "rank 0 waits (job5.py:9 turn)",
        "evidence": [],
        "advice": "",
        **more,
    }


def test_the_family_the_ranks_and_a_line_make_it_right() -> None:
    """A further warning does no harm."""
    other = finding(severity="warning", ranks=[1], kind="straggler")
    assert verdict(FAULTY, [finding(), other]) == "TP"
    assert verdict(FAULTY, [finding(ranks=[1])]) == "TP"


@pytest.mark.parametrize(
    "more",
    [
        {"kind": "rank-crashed"},
        {"ranks": [2]},
        {"ranks": []},
        {"summary": "rank 0 waits (job5.py:8 turn)"},
        {"summary": "rank 0 waits (job51.py:9 turn)"},
        {"severity": "warning"},
    ],
)
def test_one_that_lacks_one_of_them_is_missed(more: dict[str, Any]) -> None:
    """The kind, the ranks, the line and the severity."""
    assert verdict(FAULTY, [finding(**more)]) == "FN"


def test_a_second_critical_finding_about_another_rank_is_a_miss() -> None:
    """Whoever reads it is sent to the wrong rank."""
    assert verdict(FAULTY, [finding(), finding(ranks=[2])]) == "FN"


def test_about_a_correct_program_even_a_warning_is_false() -> None:
    """Only silence is right."""
    assert verdict(CORRECT, []) == "TN"
    assert verdict(CORRECT, [finding(severity="warning", kind="straggler")]) == "FP"


def test_the_measures_are_those_of_the_published_table() -> None:
    """Of six true positives, eight true negatives, two false positives and four misses."""
    found = measures(["TP"] * 6 + ["TN"] * 8 + ["FP"] * 2 + ["FN"] * 4 + ["ran through"])
    assert found == pytest.approx(
        {"accuracy": 0.7, "recall": 0.6, "specificity": 0.8, "precision": 0.75, "F1": 2 / 3}
    )
    assert measures(["FN"])["precision"] is None


def test_the_table_counts_each_cell() -> None:
    """What ran through is not judged."""
    cell = {"cell": "race p2p"}
    results = [
        {**cell, "name": "job7", "verdict": one} for one in ("TP", "FN", "TN", "ran through")
    ]
    shown = table(results)
    assert "| ddtop | 1 | 1 | 0 | 1 | 0.667 |" in shown
    assert shown.endswith("Not judged: job7, ran through")
    assert "| message race | 1 of 2, 1 of 1 | left out |" in shown
