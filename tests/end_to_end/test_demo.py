"""Demos without a terminal: each names its fault, with the right ranks, and leaves nothing
behind.
"""

import os
import re
import signal
import sys
from contextlib import suppress
from glob import glob
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch


def left_by(world, pid):
    """The files that the demo of this pid has left."""
    return [
        found
        for folder in (world.folder, "/dev/shm")
        for found in Path(folder).glob(f"ddtop-demo-{pid}-*")
    ]


@pytest.mark.parametrize(
    ("fault", "ranks", "said"),
    [
        ("collective-mismatch", 3, "rank 2: all_reduce of 2,048 float"),
        ("master-unreachable", 2, "occupant.py"),
        ("straggler", 3, "compare_with_neighbours (lagging.py:"),
        ("rank-stopped", 2, "rank 1"),
    ],
)
def test_a_demo_names_its_fault_and_cleans_up(world, fault, ranks, said):
    """Three demos run under torchrun, and one of them makes progress with its fault. The other one
    has plain processes beside a foreign process.
    """
    done = world.ddtop("demo", "--fault", fault, "--ranks", str(ranks))

    assert done.returncode == 1, done.stderr
    assert f"critical: {fault}" in done.stdout
    assert said in done.stdout
    assert done.stdout.count("critical: ") == 1
    assert world.processes() == set()
    assert left_by(world, re.search(r"\bdemo-(\d+)", done.stdout)[1]) == []
    job = re.search(r"ddtop report (demo-\d+)", done.stderr)[1]
    report = world.ddtop("report", job, "-o", "-")
    assert f"critical: {fault}: " in report.stdout
    verdict = report.stdout.partition("## Ranks")[0]
    if fault != "master-unreachable":
        # The demo ends it as a time limit would. The fault is reported all the same.
        assert "Until then: " in verdict
        assert said in verdict


def test_a_demo_under_mpirun_leaves_none_of_its_shared_memory(world):
    pytest.importorskip("mpi4py")
    segments = "/dev/shm/sm_segment*"
    before = set(glob(segments))
    demo = world.start_command(
        [sys.executable, "-m", "ddtop", "demo", "--mpi", "--fault", "rank-killed", "--ranks", "3"],
        ddtop=False,
    )
    world.done(demo, 120)

    assert "critical: rank-killed" in world.output(demo)[0], world.output(demo)[1]
    assert world.processes() == set()
    assert left_by(world, demo.pid) == []
    # Those of another job have a process.
    assert [path for path in glob(segments) if path not in before and not is_mapped(path)] == []


def is_mapped(path):
    """Whether a process has this file in its memory."""
    for maps in glob("/proc/[0-9]*/maps"):
        with suppress(OSError):
            if path in Path(maps).read_text():
                return True
    return False


def test_a_demo_whose_terminal_is_closed_takes_its_processes_with_it(world):
    """The ranks, which will never be complete, wait for each other."""
    demo = world.start_command(
        [sys.executable, "-m", "ddtop", "demo", "--fault", "rank-missing", "--ranks", "3"],
        ddtop=False,
    )
    world.until(lambda: left_by(world, demo.pid) and len(world.processes()) > 2, 40.0, "ranks")

    os.kill(demo.pid, signal.SIGHUP)
    code = world.done(demo)

    assert code != 0
    # A relay that a rank was just starting notices by itself that no rank will connect.
    world.until(lambda: world.processes() == set(), 30.0, "end of all processes")
    assert left_by(world, demo.pid) == []
