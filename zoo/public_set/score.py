"""Judges what ddtop said of each program, and prints the table beside published numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from zoo.public_set.programs import Program
from zoo.public_set.table import CLASSES, FEATURES

WAIT = {
    "unmatched-p2p", "wait-cycle", "collective-mismatch", "not-in-collective", "left-early",
    "calls-differ", "collective-stuck",
}  # fmt: skip
ERROR = {"rank-crashed", "comm-error", "rank-killed"}
FAMILIES = {"wait": WAIT, "error": ERROR, "any": WAIT | ERROR}
MEASURES = ("accuracy", "recall", "specificity", "precision", "F1")
PUBLISHED = {
    "MUST": {"accuracy": 0.866, "recall": 0.847, "specificity": 0.888, "F1": 0.869},
    "ISP": {"accuracy": 0.728},
    "PARCOACH": {"accuracy": 0.500},
}
"""The scores of these tools on the 1,730 C programs of the MPI Bugs Initiative."""
Finding = Mapping[str, Any]


def is_right(program: Program, finding: Finding) -> bool:
    """Whether a finding has the family, the ranks and one of the lines that are expected."""
    return (
        finding["kind"] in FAMILIES[program.row.family]
        and _may_be(program, finding)
        and bool(set(program.lines) & set(lines_of(program, finding)))
    )


def _may_be(program: Program, finding: Finding) -> bool:
    return bool(finding["ranks"]) and set(map(str, finding["ranks"])) <= set(program.row.ranks)


def lines_of(program: Program, finding: Finding) -> list[int]:
    """The lines of the program in a finding's texts."""
    texts = "\n".join([finding["summary"], *finding["evidence"], finding["advice"] or ""])
    return [int(one) for one in re.findall(rf"\b{program.name}\.py:(\d+)", texts)]


def verdict(program: Program, findings: Sequence[Finding]) -> str:
    """TP, FN, FP or TN. Of a faulty program no critical finding may name other ranks, and of a
    correct one nothing may be said, not even a warning.
    """
    if not program.faulty:
        return "FP" if findings else "TN"
    critical = [one for one in findings if one["severity"] == "critical"]
    right = any(is_right(program, one) for one in critical)
    return "TP" if right and all(_may_be(program, one) for one in critical) else "FN"


def measures(verdicts: Iterable[str]) -> dict[str, float | None]:
    """Accuracy, recall, specificity, precision and F1; None where nothing was counted."""
    count = Counter(verdicts)
    tp, tn, fp, fn = (count[one] for one in ("TP", "TN", "FP", "FN"))
    parts = ((tp + tn, tp + tn + fp + fn), (tp, tp + fn), (tn, tn + fp), (tp, tp + fp))
    values = [above / below if below else None for above, below in parts]
    return dict(zip(MEASURES, [*values, 2 * tp / (2 * tp + fp + fn) if tp else None], strict=True))


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """The scores, then those of each cell, then the programs that are not judged."""
    judged = [one for one in results if one["verdict"] in ("TP", "TN", "FP", "FN")]
    others = [one for one in results if one not in judged]
    count = Counter(one["verdict"] for one in judged)
    lines = [f"| | TP | TN | FP | FN | {' | '.join(MEASURES)} |", "|" + "---|" * 10]
    shown = [str(count[one]) for one in ("TP", "TN", "FP", "FN")]
    lines.append(_row("ddtop", shown, measures(one["verdict"] for one in judged)))
    lines += [_row(tool, ["", "", "", ""], numbers) for tool, numbers in PUBLISHED.items()]
    lines += ["", f"| | {' | '.join(FEATURES.values())} |", "|" + "---|" * (len(FEATURES) + 1)]
    for kind, words in CLASSES.items():
        cells = [_cell(judged, f"{kind} {feature}") for feature in FEATURES]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    lines += [f"\nNot judged: {one['name']}, {one['verdict']}" for one in others]
    return "\n".join(lines)


def _row(tool: str, counts: Sequence[str], numbers: Mapping[str, float | None]) -> str:
    values = ("" if (one := numbers.get(name)) is None else f"{one:.3f}" for name in MEASURES)
    return f"| {tool} | {' | '.join([*counts, *values])} |"


def _cell(judged: Sequence[Mapping[str, Any]], cell: str) -> str:
    """How many of the faulty ones are named, and of the correct ones left in peace."""
    count = Counter(one["verdict"] for one in judged if one["cell"] == cell)
    faulty, correct = count["TP"] + count["FN"], count["TN"] + count["FP"]
    if not faulty + correct:
        return "left out"
    return f"{count['TP']} of {faulty}, {count['TN']} of {correct}"
