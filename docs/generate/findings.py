"""The page of all kinds of finding: what `ddtop explain KIND` prints, with the values of the
policy.
"""

from __future__ import annotations

from ddtop.diagnosis.explain import PAGES
from ddtop.diagnosis.explain.page import filled
from ddtop.policy import POLICY
from docs.generate.markdown import cell, code, fenced, head, listed, table


def page() -> str:
    """`reference/findings.md`."""
    lines = head(
        "Findings",
        "ddtop/diagnosis/explain",
        "Every kind of finding, how ddtop finds it and what to do. `ddtop explain KIND` prints the"
        " same text.",
        "The severity is `critical`, `warning` or `info`. A kind never changes its name: scripts"
        " may compare it.",
    )
    pages = {kind: filled(page, POLICY) for kind, page in PAGES.items()}
    lines += table(
        ("kind", "severity", "meaning"),
        ((f"[{code(kind)}](#{kind})", one.severity, one.brief) for kind, one in pages.items()),
    )
    for kind, one in pages.items():
        lines += [
            f"## {kind}",
            "",
            f"*{cell(one.severity)}.* {one.meaning}",
            "",
            "How it is found:",
            "",
        ]
        lines += [*listed(one.found), "What to do:", "", *listed(one.steps)]
        if one.before:
            lines += ["Before:", "", *fenced(one.before, "python")]
        if one.after:
            lines += ["After:", "", *fenced(one.after, "python")]
    return "\n".join(lines)
