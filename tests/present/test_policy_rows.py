"""The policy of the viewer decides whether a row marks a report as old."""

from dataclasses import replace

from ddtop import thresholds
from ddtop.policy import POLICY
from ddtop.present.numbers import CellContext, rank_table
from ddtop.ui.rows import row_line
from tests.ui import builders, changed


def test_the_policy_says_from_when_a_report_is_shown_as_old(monkeypatch):
    rank = changed.replace(builders.healthy_rank(0), agent={"report_age_s": 12.0})
    shape, context = rank_table(120, 8, 7), CellContext(builders.NOW)

    def is_marked(policy):
        monkeypatch.setattr(thresholds, "_chosen", policy)
        line = row_line(rank, shape, context, tagged=False, old=False)
        return ("  12s", "warning") in line

    assert is_marked(POLICY)
    assert not is_marked(replace(POLICY, report_silent_s=20.0))
