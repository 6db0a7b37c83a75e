"""What a finding means, on the page of the findings and as text."""

from dataclasses import replace

from ddtop.diagnosis.explain import PAGES, explain
from ddtop.diagnosis.page import Explanation
from ddtop.policy import POLICY
from ddtop.present.explain import explain_text, kinds_text
from ddtop.present.findings import finding_lines
from ddtop.present.text import plain
from tests.ui import builders

MEANING = "what it means"


def page_of(*kinds):
    snapshot, verdict = builders.hang()
    findings = tuple(replace(verdict.findings[0], kind=kind) for kind in kinds)
    return [
        plain(line) for line in finding_lines(snapshot, replace(verdict, findings=findings), 80)
    ]


def test_the_page_of_a_finding_says_what_it_means_under_the_advice():
    lines = page_of("rank-stopped")
    at = lines.index(MEANING)

    assert lines.index("what to do") < at
    found = lines.index("how it is found")
    assert (
        " ".join(" ".join(lines[at + 1 : found]).split()) == explain("rank-stopped", POLICY).meaning
    )
    assert lines.index("steps") > found
    assert lines[-1] == "  → ddtop explain rank-stopped"


def test_of_several_findings_one_is_opened_and_the_others_are_a_line_each():
    lines = page_of("rank-stopped", "io-stall")

    assert lines[0].startswith("› 1  ✖ rank 5 has been")
    assert lines[1].startswith("  2  ✖ rank 5 has been")
    assert lines.count(MEANING) == 1


def test_a_kind_of_a_newer_version_has_a_page_without_a_meaning():
    """A journal may be read by an older ddtop than the one that wrote it."""
    assert page_of("no-such-kind").count(MEANING) == 0


def test_a_page_as_text_keeps_commands_whole():
    page = Explanation(
        kind="some-kind",
        severity="critical",
        brief="what it is in a line",
        meaning="some words " * 12,
        found=("one fact",),
        steps=(
            "look at this for once and then at that, for as long as it takes\n" + "cat " + "x" * 60,
            "then mend it",
        ),
        before=("bad()",),
        after=("good()",),
    )
    lines = explain_text(page, 50).splitlines()

    assert lines[:2] == ["some-kind (critical)", "what it is in a line"]
    assert f"      cat {'x' * 60}" in lines
    assert [line for line in lines if len(line) > 50] == [f"      cat {'x' * 60}"]
    assert lines[-4:] == ["code that does it", "      bad()", "code that does not", "      good()"]


def test_no_page_is_wider_than_a_line_that_people_read():
    assert (
        max(
            len(line)
            for kind in PAGES
            for line in explain_text(explain(kind, POLICY), 250).splitlines()
        )
        <= 100
    )


def test_the_list_of_kinds_says_how_many_looks_a_finding_needs():
    policy = POLICY.with_limits({"appear_snapshots": 5, "clear_snapshots": 7})

    assert (
        "A finding appears after 5 looks in a row that agree, half a second apart, and goes away"
        " after 7 looks without it." in " ".join(kinds_text(PAGES.values(), 100, policy).split())
    )
