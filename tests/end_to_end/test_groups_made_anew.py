"""A job that destroys its groups and makes them again is followed like one that does not."""

import pytest

from tests.recorders import records_gloo

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("pause_s", [0.0, 1.0])
def test_a_hang_after_the_second_init_process_group_is_named(world, pause_s):
    """Torch keeps the status of a destroyed group, and the next group has the same name."""
    world.torchrun("again", str(world.folder), str(pause_s))
    world.job()

    def named():
        found = world.diagnose()["findings"]
        return next((one for one in found if one["kind"] == "not-in-collective"), None)

    finding = world.until(named, 60.0, "a finding")

    assert finding["ranks"] == [1]
    assert "all_reduce" in finding["summary"] or not records_gloo()
