"""Writes the reference pages and the index of decisions from the code and from the decision pages.

It is kept beside what it writes and outside the package: nobody who installs ddtop needs it. It
imports no torch, and runs nothing but a simulated job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from ddtop.diagnosis.kinds import Kind
from docs.generate import (
    commands,
    decisions,
    environment,
    findings,
    json_schema,
    keys,
    limits,
    man,
    metrics,
)

DOCS = Path(__file__).resolve().parents[1]
PAGES: Mapping[str, Callable[[], str]] = {
    "reference/commands.md": commands.page,
    "man/ddtop.1": man.page,
    "reference/findings/index.md": findings.index,
    **{f"reference/findings/{kind}.md": partial(findings.page, kind) for kind in Kind},
    "reference/metrics.md": metrics.page,
    "reference/limits.md": limits.page,
    "reference/environment.md": environment.page,
    "reference/keys.md": keys.page,
    "reference/json.md": json_schema.page,
    "decisions/index.md": lambda: decisions.page(DOCS / "decisions"),
}
"""By path below `docs/`: what makes the text of that page."""


def stale() -> list[str]:
    """The pages whose committed text differs from what the code says now."""
    return [name for name, made in PAGES.items() if _read(DOCS / name) != made()]


def write() -> list[str]:
    """Write all pages that are stale, and return their names."""
    found = stale()
    for name in found:
        (DOCS / name).parent.mkdir(parents=True, exist_ok=True)
        (DOCS / name).write_text(PAGES[name](), encoding="utf-8")
    return found


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None
