"""`diagnose --pid` and `status --pid`: a verdict about ranks that were started without ddtop."""

from __future__ import annotations

import json
import os
import signal

import pytest

from ddtop.relay.processes import pyspy
from tests.cli.commands import ddtop
from tests.cli.outside import hanging_script, started

pytestmark = pytest.mark.skipif(
    pyspy.find() is None, reason="py-spy is not installed: pip install 'ddtop[native]'"
)


@pytest.fixture
def script(tmp_path):
    return hanging_script(tmp_path)


def three_ranks(script):
    place = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29514"}
    return [started(script, RANK=str(rank), **place) for rank in range(3)]


def test_the_rank_that_is_elsewhere_is_named_by_the_stacks(home, script):
    zero, one, two = three_ranks(script)
    with zero as a, one as b, two as c:
        pids = f"{a.pid},{b.pid},{c.pid}"
        done = ddtop("diagnose", "--pid", pids, "--json")
        for process in (a, b, c):
            process.kill()
    if "no right to look" in done.stderr:
        pytest.skip(done.stderr)

    shown = json.loads(done.stdout)
    assert [(one["kind"], one["ranks"], one["severity"]) for one in shown["findings"]] == [
        ("not-in-collective", [1], "critical")
    ]
    (finding,) = shown["findings"]
    assert "ranks 0,2 wait for it in all_reduce, by their stacks" in finding["summary"]
    assert "in load (train.py:10)" in finding["summary"]
    assert finding["seq"] is None
    assert (shown["health"], done.returncode) == ("critical", 1)


def test_status_has_a_row_for_each_rank(home, script):
    zero, one, two = three_ranks(script)
    with zero as a, one as b, two as c:
        os.kill(b.pid, signal.SIGSTOP)
        done = ddtop("status", "--pid", f"{a.pid},{b.pid},{c.pid}", "--json")
        for process in (a, b, c):
            process.kill()

    shown = json.loads(done.stdout)
    states = {one["rank"]: one["state"] for one in shown["ranks"]}
    assert states[1] == "stopped"
    assert [one["iteration"] for one in shown["ranks"]] == [None] * 3


def test_without_py_spy_that_is_reported_first_and_the_rest_is_shown(home, script, monkeypatch):
    """Without py-spy the process states can still be read."""
    monkeypatch.setattr(pyspy, "find", lambda: None)
    zero, one, two = three_ranks(script)
    with zero as a, one as b, two as c:
        os.kill(b.pid, signal.SIGSTOP)
        words = ["diagnose", "--pid", f"{a.pid},{b.pid},{c.pid}", "--for", "4"]
        done = ddtop(*words)
        for process in (a, b, c):
            process.kill()

    assert done.returncode == 3
    assert "pip install 'ddtop[native]'" in done.stderr.splitlines()[0]
    assert "rank 1 has been stopped" in " ".join(done.stdout.split())
