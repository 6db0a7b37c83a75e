"""Pages of findings, `KIND.md`: what happens to a job, and beside it what `ddtop diagnose` says.

A `##` begins a scenario. Its blocks of Python use the names of `tests/jobs.py` and leave a `job`;
those above the first scenario are run before each of them. The block of text behind a block of
Python is what is said then, without the line of the job, and begins with the findings that were
shown earlier. Without such a block nothing has been said at any time: a near miss.

`python -m tests.findings --write` writes the blocks of text anew. Read the difference before you
commit it: what is written is what the code says, not what is right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ddtop.present.plain import diagnose_text
from ddtop.words.sentences import rank_list
from tests import jobs
from tests.jobs import FakeJob

PAGES = sorted(Path(__file__).parent.glob("*.md"))
WIDTH = 100
_PYTHON = re.compile(r"^```python\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
_STEP = re.compile(_PYTHON.pattern + r"(?:\n```text\n.*?^```\n)?", _PYTHON.flags)


def scenarios(page: Path) -> Iterator[tuple[str, str]]:
    """(heading, text from this heading to the next) of each scenario of a page."""
    for text in _sections(page)[1:]:
        yield text.partition("\n")[0].removeprefix("## "), text


def played(page: Path, scenario: str) -> str:
    """A scenario of the page with what is said about its job now."""
    names: dict[str, Any] = dict(vars(jobs))
    for found in _PYTHON.finditer(_sections(page)[0]):
        exec(compile(found[1], page, "exec"), names)

    def step(found: re.Match[str]) -> str:
        exec(compile(found[1], page, "exec"), names)
        said = what_is_said(names["job"])
        return f"```python\n{found[1]}```\n" + (f"\n```text\n{said}```\n" if said else "")

    return _STEP.sub(step, scenario)


def what_is_said(job: FakeJob) -> str:
    """What `ddtop diagnose` says of this moment; empty if it has never had a finding."""
    verdict, ever = job.verdict(), job.ever()
    if not ever:
        return ""
    now = {jobs.brief(finding) for finding in verdict.findings}
    earlier = "".join(
        f"earlier: {severity} {kind} {rank_list(ranks)}".rstrip() + "\n"
        for severity, kind, ranks in (one for one in ever if one not in now)
    )
    _, _, text = diagnose_text(job.snapshot(), verdict, WIDTH).partition("\n")
    return earlier + text.lstrip("\n")


def anew(page: Path) -> str:
    """The page with what is said now."""
    head, *texts = _sections(page)
    return head + "".join(played(page, text) for text in texts)


def _sections(page: Path) -> list[str]:
    """What is above the first scenario, then the scenarios."""
    return re.split(r"^(?=## )", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
