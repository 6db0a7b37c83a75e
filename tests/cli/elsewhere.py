"""Jobs on another host, and ddtop as a process."""

from __future__ import annotations

import os
import subprocess
import sys

from ddtop import registry
from tests.cli.commands import write_ended


def over(job, name="train-47"):
    """A job on the other host that has ended, with the last state that its relay left."""
    entry = write_ended(job, name)
    there = registry.last_state_path(name, "r1", entry.sender)
    registry.last_state_path(name, "r1").rename(there)
    return entry, there


def attach(there, *words, **variables):
    """What the command prints without a terminal."""
    return subprocess.run(
        [sys.executable, "-m", "ddtop", "attach", *words],
        env={**os.environ, **there.environment, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def ddtop(*words, **variables):
    environ = {name: value for name, value in os.environ.items() if name != "DDTOP_HUB"} | variables
    return subprocess.run(
        [sys.executable, "-m", "ddtop", *words], env=environ, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
