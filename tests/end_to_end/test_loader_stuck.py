"""Real DataLoader workers that deadlock: the finding names the worker and its line, not only the rank that waits for it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def children(pid):
    return [int(word) for path in Path(f"/proc/{pid}/task").glob("*/children") for word in path.read_text().split()]


def test_a_worker_in_a_lock_that_was_held_at_fork_is_named_with_its_stack(world):
    locked = world.folder / "locked"
    world.torchrun("loading", str(locked))
    world.moving()
    (rank,) = [one["pid"] for one in world.status() if one["rank"] == 1]
    workers = children(rank)
    assert len(workers) == 2

    locked.touch()
    stuck = world.finding("loader-stuck")

    assert (stuck["severity"], stuck["ranks"], stuck["victims"]) == ("critical", [1], [0])
    match = re.search(
        r"^rank 1 has been in the DataLoader \(loading.py:\d+ main\) for .*pid (\d+), which", stuck["summary"]
    )
    assert match, stuck["summary"]
    assert int(match[1]) in workers
    # The automatic dump of the standstill has asked the worker too.
    assert any(re.match(rf"worker {match[1]}'s stack: __getitem__ loading.py:\d+", line) for line in stuck["evidence"])
    assert [one["kind"] for one in world.diagnose()["findings"]] == ["loader-stuck"]
