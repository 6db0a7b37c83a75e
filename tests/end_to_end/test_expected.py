"""Real ranks on gloo: one of them is in a region that it has announced."""

import os
import signal

import pytest


@pytest.mark.torch
def test_a_region_that_was_announced_is_quiet_then_a_warning_and_no_excuse(world):
    world.torchrun("exporting", "15", "600")

    def muted():
        return next(iter(world.diagnose().get("muted", ())), None)

    quiet = world.until(muted, 90.0, "a muted finding")
    rank = world.status()[0]
    region = rank["expected"]
    late = world.finding("not-in-collective")
    os.kill(rank["pid"], signal.SIGSTOP)
    stopped = world.finding("rank-stopped")

    assert (quiet["ranks"], quiet["by"]) == ([0], "ddtop.expected")
    assert (region["name"], region["up_to_s"]) == ("export", 15.0)
    assert late["severity"] == "warning"
    assert late["summary"].startswith("rank 0 has been in 'export' for ")
    assert late["summary"].endswith("; 15 s were expected")
    assert (stopped["severity"], stopped["ranks"]) == ("critical", [0])
