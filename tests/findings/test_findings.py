"""Every page says what ddtop says."""

from __future__ import annotations

import re

import pytest

from ddtop.diagnosis.kinds import Kind
from tests.findings import PAGES, played, scenarios

_TEXT = re.compile(r"^```text\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
EACH = [(page, name, text) for page in PAGES for name, text in scenarios(page)]


@pytest.mark.parametrize(
    ("page", "text"),
    [(page, text) for page, _, text in EACH],
    ids=[f"{page.stem}: {name}" for page, name, _ in EACH],
)
def test_a_scenario_of_a_page_ends_as_the_page_says(page, text):
    """After a wanted change: python -m tests.findings --write"""
    assert played(page, text) == text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_about_its_kind_and_has_a_near_miss(page):
    said = ["".join(_TEXT.findall(text)) for _, text in scenarios(page)]

    assert page.stem in set(Kind)
    assert [text for text in said if f": {page.stem}, for " in text]
    assert [text for text in said if page.stem not in text]


def test_a_page_that_says_something_else_is_found(tmp_path):
    page = tmp_path / "rank-stopped.md"
    page.write_text(
        "```python\njob = trained()\n```\n## a\n```python\njob.passes(3)\n```\n"
        "```text\nother words\n```\n## b\n```python\njob.ranks[0].is_stopped()\n"
        "job.passes(6)\n```\n"
    )
    (_, silent), (_, stopped) = scenarios(page)

    assert played(page, silent) == "## a\n```python\njob.passes(3)\n```\n"
    assert "critical: rank-stopped, for 5 s\n" in played(page, stopped)
