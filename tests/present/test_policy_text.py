"""The text follows the policy: a clock that is not known well, and when a finding is shown."""

import pytest

from ddtop.diagnosis.explain import PAGES
from ddtop.model.facts import HostSeen
from ddtop.present.explain import kinds_text
from ddtop.present.hosts import clock_text
from ddtop.wire.records import LEAF
from tests.second_policy import Case
from tests.ui import builders


def error_of_a_clock(policy):
    return clock_text(HostSeen("a", "node1", LEAF, 0, 80_000_000, builders.NOW), policy)


def looks(policy):
    """The sentence about when a finding is shown, as one line."""
    text = " ".join(kinds_text(PAGES.values(), 100, policy).split())
    return text[text.index("A finding appears") :]


def note(appear, clear):
    return (
        f"A finding appears after {appear} looks in a row that agree, half a second apart, and"
        f" goes away after {clear} looks without it."
    )


CASES = [
    Case("a clock", "clock_matters_s", 0.1, error_of_a_clock, "±80 ms", ""),
    Case("looks", "appear_snapshots", 5, looks, note(2, 3), note(5, 3)),
    Case("looks", "clear_snapshots", 5, looks, note(2, 3), note(2, 5)),
]


@pytest.mark.parametrize("case", CASES, ids=Case.name)
def test_the_policy_says_what_is_written(case):
    assert case.said_by_both() == (case.ours, case.theirs)
