"""Real DataLoader workers that deadlock: the finding names the worker and its line, not only the
rank that waits for it.
"""

import os
import re
import signal
from pathlib import Path

import pytest

from ddtop.relay.processes.pyspy import find

pytestmark = pytest.mark.torch


def children(pid):
    return [
        int(word)
        for path in Path(f"/proc/{pid}/task").glob("*/children")
        for word in path.read_text().split()
    ]


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
        r"^rank 1 has been in the DataLoader \(loading.py:\d+ main\) for .*pid (\d+), which",
        stuck["summary"],
    )
    assert match, stuck["summary"]
    assert int(match[1]) in workers
    if find() is not None:
        # The relay has read that worker's memory by itself.
        line = rf"worker {match[1]}'s stack: (Rows\.)?__getitem__ loading.py:\d+"
        assert any(re.match(line, one) for one in stuck["evidence"])
    assert [one["kind"] for one in world.diagnose()["findings"]] == ["loader-stuck"]


def test_a_persistent_worker_that_is_stopped_between_two_epochs_is_named(world):
    """Each epoch begins with a message to all workers, before any batch is requested."""
    world.torchrun("epochs", "fork", "stopped")
    pids = world.until(
        lambda: (path := world.folder / "workers").exists() and path.read_text().split(),
        90,
        "an epoch",
    )
    os.kill(int(pids[1]), signal.SIGSTOP)
    (world.folder / "go").touch()

    stuck = world.finding("loader-stuck")

    assert (stuck["severity"], stuck["ranks"], stuck["victims"]) == ("critical", [1], [0])
    assert (
        f"its worker pid {pids[1]}, which must deliver the next batch, is stopped (SIGSTOP or"
        " Ctrl-Z)" in stuck["summary"]
    )
    assert [one["kind"] for one in world.diagnose()["findings"]] == ["loader-stuck"]


@pytest.mark.skipif(find() is None, reason="py-spy is not installed")
def test_a_worker_that_was_not_forked_is_named_with_the_datasets_line(world):
    """The worker has no signal handler of ours. Its memory is read, and it goes on unchanged."""
    os.mkfifo(world.folder / "pipe")
    world.torchrun("epochs", "spawn", "reads")
    world.moving()
    (world.folder / "go").touch()

    stuck = world.finding("loader-stuck")

    assert (stuck["ranks"], stuck["victims"]) == ([1], [0])
    assert re.search(r"\(at (Rows\.)?read_shard epochs.py:\d+\)", stuck["summary"])
    assert any("__getitem__ epochs.py:" in line for line in stuck["evidence"])


def test_a_rank_whose_last_status_lags_and_whose_worker_blocks_is_named(world):
    """Gradient accumulation and several buckets, as in most trainers. The status showed this rank
    as waiting in an all_reduce.
    """
    pipe = world.folder / "pipe"
    os.mkfifo(pipe)
    world.torchrun("accumulates", str(pipe))
    # It takes some steps until the status is in that state.
    world.until(pipe.with_suffix(".now").exists, 90, "a status that lags")

    stuck = world.finding("loader-stuck")

    assert (stuck["severity"], stuck["ranks"], stuck["victims"]) == ("critical", [1], [0])
    assert [one["kind"] for one in world.diagnose()["findings"]] == ["loader-stuck"]
