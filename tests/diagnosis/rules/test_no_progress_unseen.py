"""A job without progress of which only some ranks are seen: from outside, on one of its hosts."""

import pytest

from tests.diagnosis.rules.no_progress_unseen import half_seen


@pytest.mark.parametrize(
    "standing",
    [
        {"function": "step", "line": 11},
        {"function": "step", "line": 11, "activity": "collective", "waits_on": "collective"},
    ],
)
def test_the_ranks_that_are_seen_are_a_warning_that_says_who_was_not_seen(standing):
    """A rank was killed before the look, or the others are on other hosts. There was no finding."""
    finding = half_seen(**standing).passes(300).finds("warning", "no-progress", 0, 1)

    assert finding.summary.endswith("; ranks 2,3 were not seen")
    assert "ranks 2,3 may be on other hosts" in finding.advice
