"""The policy of this viewer decides which numbers of a host are drawn as old."""

import pytest

from ddtop import thresholds
from ddtop.policy import POLICY
from ddtop.present.hosts import HostFacts, host_row, hosts_table
from ddtop.present.map import HEALTHY
from ddtop.ui.views.lists import HostsView
from ddtop.wire.records import HostState
from tests.ui import changed, gpus
from tests.ui.builders import live
from tests.ui.screens import watching

LATER = {"host_report_old_s": 9.0}


def judge_by(monkeypatch, changes):
    monkeypatch.setattr(thresholds, "_chosen", POLICY.with_limits(changes))


@pytest.mark.parametrize(("changes", "style"), [({}, "warning"), (LATER, "dim")])
def test_the_policy_says_from_when_the_report_of_a_host_is_old(monkeypatch, changes, style):
    judge_by(monkeypatch, changes)
    host = HostFacts("node0", (0, 1), HEALTHY, 2.0, HostState("node0", 4), 7.0)
    row = host_row(host, bytes(2), None, hosts_table(120, (host,)))

    assert [how for text, how in row if text.strip() == "7.0s"] == [style]


@pytest.mark.parametrize(("changes", "old"), [({}, True), (LATER, False)])
async def test_the_policy_says_from_when_the_gpus_of_a_host_are_old(monkeypatch, changes, old):
    judge_by(monkeypatch, changes)
    snapshot = changed.replace(gpus.on_gpus(8), host_ages_s=(7.0,))

    async with watching(live(snapshot), size=(120, 30)) as (app, pilot):
        await pilot.press("5")
        await pilot.pause()
        line = app.screen.query_one(HostsView).list.made(2).line

    assert ({style for _, style in line} == {"old"}) == old
