"""Programs that use torch.distributed.rpc."""

import json

import pytest

pytestmark = pytest.mark.torch


def test_training_that_was_called_by_rpc_is_judged_by_its_thread(world):
    """The main thread stands in rpc.shutdown, and TensorPipe polls with a third of a core."""
    world.torchrun("rpc_calls", ranks=3)

    def critical():
        found = world.diagnose(1.1)["findings"]
        return next((one for one in found if one["severity"] == "critical"), None)

    found = world.until(critical, 40.0, "a critical finding")

    assert (found["kind"], found["ranks"]) == ("not-in-collective", [2])
    assert "reading a pipe in load (rpc_calls.py:" in found["summary"]


def test_spawned_processes_that_only_use_rpc_are_ranks(world):
    world.start("rpc_calls", "spawned")

    def three():
        status = json.loads(world.ddtop("status", world.job(), "--json").stdout or "{}")
        ranks = [one for one in status.get("ranks", ()) if one["rpc"] is not None]
        return status if len(ranks) == 3 else None

    status = world.until(three, 60.0, "three workers of RPC")

    assert [one["rpc"]["name"] for one in status["ranks"]] == ["worker0", "worker1", "worker2"]
    assert status["health"] == "ok"
