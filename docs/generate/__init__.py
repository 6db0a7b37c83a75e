"""Makes the reference pages from the code, the index of decisions from their pages, and the page of
measurements from their data.

None of them is in git: the site is built with them (`docs/generate/site.py`), and the man page is
written before an sdist is built. It is kept beside the other pages and outside the package: nobody
who installs ddtop needs it. It imports no torch, and runs nothing but a simulated job.
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
    results,
)

DOCS = Path(__file__).resolve().parents[1]
PAGES: Mapping[str, Callable[[], str]] = {
    "reference/commands.md": commands.page,
    "reference/findings/index.md": findings.index,
    **{f"reference/findings/{kind}.md": partial(findings.page, kind) for kind in Kind},
    "reference/metrics.md": metrics.page,
    "reference/limits.md": limits.page,
    "reference/environment.md": environment.page,
    "reference/keys.md": keys.page,
    "reference/json.md": json_schema.page,
    "explanation/measurements.md": results.page,
    "decisions/index.md": lambda: decisions.page(DOCS / "decisions"),
}
"""By path below `docs/` of the site: what makes the text of that page."""
MAN_PAGE = DOCS / "man" / "ddtop.1"


def write_man_page() -> None:
    """The page that `man ddtop` shows, where an sdist takes it from."""
    MAN_PAGE.parent.mkdir(exist_ok=True)
    MAN_PAGE.write_text(man.page(), encoding="utf-8")
