"""`ddtop explain` as text: the page of one kind of finding, and the list of all kinds."""

from __future__ import annotations

from collections.abc import Iterable

from ddtop.diagnosis.page import Explanation
from ddtop.policy import Policy
from ddtop.present.text import fit, hang

WIDEST = 100
"""Text wider than this is hard to read."""
_CODE = "      "


def explain_text(page: Explanation, width: int) -> str:
    """The page as plain lines; commands and code are never broken, so that they can be copied."""
    width = min(width, WIDEST)
    lines = [*hang(f"{page.kind} ({page.severity})", width, "", "  "), *hang(page.brief, width, "")]
    lines += ["", "what it means", *hang(page.meaning, width, "  ")]
    lines += ["", "how it is found"]
    for text in page.found:
        lines += hang(text, width, "  - ")
    lines += ["", "what to do"]
    for number, step in enumerate(page.steps, 1):
        text, *commands = step.split("\n")
        lines += [
            *hang(text, width, f"  {number}. "),
            *(f"{_CODE}{command}" for command in commands),
        ]
    if page.before:
        lines += ["", "code that does it", *(f"{_CODE}{line}" for line in page.before)]
        lines += ["code that does not", *(f"{_CODE}{line}" for line in page.after)]
    return "\n".join(lines) + "\n"


def kinds_text(pages: Iterable[Explanation], width: int, policy: Policy) -> str:
    """All kinds, a line each, and when any of them is shown."""
    pages, width = list(pages), min(width, WIDEST)
    column = max(len(page.kind) for page in pages) + 2
    lines: list[str] = []
    for page in pages:
        lines += hang(page.brief, width, fit(page.kind, column))
    lines += ["", "ddtop explain KIND says what it means, how it is found and what to do."]
    note = (
        f"A finding appears after {policy.appear_snapshots} looks in a row that agree, half a "
        f"second apart, and goes away after {policy.clear_snapshots} looks without it."
    )
    return "\n".join([*lines, *hang(note, width, "")]) + "\n"
