"""The pages of `ddtop explain`: one for each kind of finding, with the limits of the policy."""

import re
from string import Formatter

import pytest

from ddtop.diagnosis.explain import PAGES, explain
from ddtop.diagnosis.page import limits
from ddtop.policy import POLICY
from ddtop.present.explain import explain_text, kinds_text

LINES_MAX, COLUMNS = 40, 80


@pytest.mark.parametrize("kind", PAGES)
def test_a_page_fits_on_a_screen(kind):
    """A terminal has 80 columns, and people do not scroll while a job hangs."""
    lines = explain_text(explain(kind, POLICY), COLUMNS).splitlines()

    assert len(lines) <= LINES_MAX
    assert [line for line in lines if len(line) > COLUMNS] == []


@pytest.mark.parametrize("kind", PAGES)
def test_limits_stand_in_a_page_by_their_name_only(kind):
    """A number that is typed into the text would not follow the policy."""
    page = PAGES[kind]
    for text in (page.meaning, *page.found):
        bare = "".join(before for before, *_ in Formatter().parse(text))
        assert re.findall(r"\b\d[\d.]* ?(?:s|ms|min|%|KiB)(?!\w)", bare) == []


@pytest.mark.parametrize("kind", PAGES)
def test_no_name_of_a_limit_is_left_in_a_page(kind):
    page = explain(kind, POLICY)
    text = "\n".join((page.severity, page.brief, page.meaning, *page.found))

    assert re.findall(r"\{[\w.-]+\}", text) == []


@pytest.mark.parametrize("kind", PAGES)
def test_another_policy_changes_every_limit_of_the_page(kind):
    named = {
        name
        for text in (PAGES[kind].meaning, *PAGES[kind].found)
        for _, name, *_ in Formatter().parse(text)
        if name
    }
    ours = POLICY.values()
    assert named <= set(ours)
    other = POLICY.with_limits({name: type(ours[name])(777) for name in named})
    page = explain(kind, other)
    text = "\n".join((page.meaning, *page.found))

    assert [name for name in named if limits(other)[name] not in text] == []
    assert ("777" in text) == bool(named - {"io_working_bytes_per_s"})


def test_every_finding_that_waits_for_a_limit_names_one():
    without = {kind for kind in PAGES if "{" not in "".join(PAGES[kind].found)}

    assert without == {
        "gpu-error",
        "gpu-shared",
        "helper-crashed",
        "threads-share-group",
        "version-skew",
        "wrong-backend",
    }


def test_limits_read_in_the_unit_of_their_name():
    found = limits(POLICY)

    assert found["still_limit_s"] == "5 s"
    assert found["ending.cancel_gap_s"] == "60 ms"
    assert found["cpu_working_ratio"] == "5 %"
    assert found["io_working_bytes_per_s"] == "64 KiB/s"
    assert found["socket_working_switches_per_s"] == "5 a second"
    assert found["healthy_wait_factor"] == "3"


def test_the_list_has_one_line_a_kind():
    lines = kinds_text(PAGES.values(), COLUMNS, POLICY).splitlines()

    assert [line.split()[0] for line in lines[: len(PAGES)]] == list(PAGES)
    assert max(len(line) for line in lines) <= COLUMNS


@pytest.mark.parametrize("kind", [kind for kind in PAGES if PAGES[kind].before])
def test_code_before_and_after_is_python(kind):
    """People copy the examples, so they must compile. A `continue` needs a loop around it."""
    for code in (PAGES[kind].before, PAGES[kind].after):
        compile("while True:\n" + "\n".join(f"    {line}" for line in code), kind, "exec")
