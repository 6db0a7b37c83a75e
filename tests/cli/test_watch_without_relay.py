"""When a watch gives up on a relay that is not heard."""

import time

from ddtop import registry, thresholds
from ddtop.cli.watching import _Watch
from ddtop.follow.look import Look
from ddtop.policy import POLICY
from tests.ui import builders


def test_a_silent_relay_is_given_up_after_the_time_that_the_policy_says(monkeypatch):
    snapshot = builders.healthy()
    lost = Look(snapshot, builders.calm(snapshot), "relay not heard", contact_age_s=120.0)

    def gives_up(**changes):
        monkeypatch.setattr(thresholds, "_chosen", POLICY.with_limits(changes))
        watch = _Watch(None, "train", registry.at_port("train", "node0", 29500), False, None)
        now = watch._read = time.monotonic()
        return watch._why_no_more_events(lost, now) is not None

    assert gives_up()
    assert not gives_up(relay_hopeless_s=180.0)
