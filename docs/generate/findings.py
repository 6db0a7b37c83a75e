"""The page of each kind of finding, with the values of the policy, and the table of all kinds."""

from __future__ import annotations

from ddtop.diagnosis.explain import PAGES
from ddtop.diagnosis.page import fill
from ddtop.policy import POLICY
from docs.generate.markdown import cell, code, fenced, head, listed, table

SOURCE = "ddtop/diagnosis/explain"


def index() -> str:
    """`reference/findings/index.md`."""
    lines = head(
        "Findings",
        SOURCE,
        "Every kind of finding. Its page says how ddtop finds it and what to do; `ddtop explain"
        " KIND` prints the same text.",
        "The severity is `critical`, `warning` or `info`. A kind never changes its name: scripts"
        " may compare it.",
    )
    pages = [fill(page, POLICY) for page in PAGES.values()]
    lines += table(
        ("kind", "severity", "meaning"),
        ((f"[{code(one.kind)}]({one.kind}.md)", one.severity, one.brief) for one in pages),
    )
    return "\n".join(lines)


def page(kind: str) -> str:
    """`reference/findings/KIND.md`."""
    one = fill(PAGES[kind], POLICY)
    lines = head(kind, SOURCE, f"*{cell(one.severity)}.* {one.meaning}")
    lines += ["## How it is found", "", *listed(one.found), "## What to do", "", *listed(one.steps)]
    if one.before:
        lines += ["## Code that does it", "", *fenced(one.before, "python")]
    if one.after:
        lines += ["## Code that does not", "", *fenced(one.after, "python")]
    return "\n".join([*lines, "[All findings](index.md)", ""])
