"""Pages of findings, `KIND.md`: what happens to a job, and beside it what `ddtop diagnose` says.

A `##` begins a scenario. Its blocks of Python use the names of `tests/jobs.py` and leave a `job`;
those above the first scenario are run before each of them. The block of text behind a block of
Python is what is said then of this kind to a viewer that has just come. `earlier` is a finding that
is gone, or was of another severity; `now` is one of another kind, with its sentence only. At last
comes how the job ended, if it did. Without such a block the job goes on, and nothing has been said
at any time.

`python -m tests.findings --write` writes the blocks of text anew. Read the difference before you
commit it: what is written is what the code says, not what is right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddtop.present.plain import diagnose_text
from ddtop.present.text import wrap_clauses
from ddtop.words.sentences import rank_list
from tests import jobs
from tests.jobs import FakeJob

PAGES = sorted(Path(__file__).parent.glob("*.md"))
WIDTH = 100
_STEP = re.compile(r"^```python\n(.*?)^```\n(?:```text\n.*?^```\n)?", re.DOTALL | re.MULTILINE)


def scenarios(page: Path) -> Iterator[tuple[str, str]]:
    """(heading, text from this heading to the next) of each scenario of a page."""
    for text in _sections(page)[1:]:
        yield text.partition("\n")[0].removeprefix("## "), text


def played(page: Path, scenario: str) -> str:
    """A scenario of the page with what is said about its job now."""
    names: dict[str, Any] = dict(vars(jobs))

    def run(text: str, found: re.Match[str]) -> None:
        # A traceback then names the line of the page.
        above = page.read_text(encoding="utf-8").partition(text)[0] + text[: found.start(1)]
        exec(compile("\n" * above.count("\n") + found[1], page, "exec"), names)

    def step(found: re.Match[str]) -> str:
        run(scenario, found)
        said = what_is_said(names["job"], page.stem)
        return f"```python\n{found[1]}```\n" + (f"```text\n{said}```\n" if said else "")

    head = _sections(page)[0]
    for found in _STEP.finditer(head):
        run(head, found)
    return _STEP.sub(step, scenario)


def what_is_said(job: FakeJob, kind: str) -> str:
    """What `ddtop diagnose` says of this moment; empty if the job goes on and has never had a
    finding."""
    snapshot, verdict, ever = job.snapshot(), job.verdict(), job.ever()
    if not ever and not verdict.findings and snapshot.ended is None:
        return ""
    shown = {jobs.brief(one) for one in verdict.findings}
    lines = [f"earlier: {_in_words(*one)}" for one in ever if one not in shown]
    for other in (one for one in verdict.findings if one.kind != kind):
        lines.append(f"now: {_in_words(*jobs.brief(other))}")
        lines += [f"  {text}" for text in wrap_clauses(other.summary, WIDTH - 2)]
    own = tuple(one for one in verdict.findings if one.kind == kind)
    if own or not verdict.findings:
        # The lines of the job, which have the time of day, end with an empty line, or are the first
        # one and that of its end.
        text = diagnose_text(snapshot, replace(verdict, findings=own), WIDTH)
        text = text.partition("\n\n" if own else "\n")[2].rstrip()
        lines.append(re.sub(r"^ended .*\n", "", text))
    if snapshot.ended is not None and not lines[-1].endswith(f": {snapshot.ended.reason}"):
        lines.append(f"the job ended: {snapshot.ended.reason}")
    return "\n".join(lines) + "\n"


def _in_words(severity: str, kind: str, ranks: tuple[int, ...]) -> str:
    return f"{severity} {kind} {rank_list(ranks)}".rstrip()


def anew(page: Path) -> str:
    """The page with what is said now."""
    head, *texts = _sections(page)
    return head + "".join(played(page, text) for text in texts)


def _sections(page: Path) -> list[str]:
    """What is above the first scenario, then the scenarios."""
    return re.split(r"^(?=## )", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
