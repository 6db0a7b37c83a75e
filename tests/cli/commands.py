"""Runs ddtop commands, and makes ended jobs that the commands find."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from ddtop import journal, registry
from tests.jobs import FakeJob


def ddtop(*words, **variables):
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("DDTOP_J")
    } | variables
    return subprocess.run(
        [sys.executable, "-m", "ddtop", *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def write_ended(job, name="train-47", reason="finished"):
    """The job file and the last state of a job that ended."""
    now = time.time_ns()
    entry = registry.JobEntry(
        registry.SCHEMA, name, "r1", "node0", "0" * 12, 1, 1, "127.0.0.1", 1, "/tmp/x", "train",
        job.world_size, 0,
        now - 60_000_000_000, now - 50_000_000_000, now - 50_000_000_000, reason,
    )  # fmt: skip
    registry.write_entry(entry)
    journal.write(registry.last_state_path(name, "r1"), job.frames)
    return entry


def finished():
    job = FakeJob(2)
    job.trains(10)
    for rank in job.ranks:
        rank.ends(0)
    job.passes(1)
    return job


def killed():
    job = FakeJob(2)
    job.trains(10)
    job.ranks[1].ends(signal=9)
    job.ranks[0].ends(signal=15, later_s=0.5)
    job.passes(1)
    return job
