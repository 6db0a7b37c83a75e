"""Text and relay follow the policy that they are given, as the rules do.

The rules have tests of their own: tests/diagnosis/test_policy.py.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

import ddtop
from ddtop.model.state.host_facts import HostSeen
from ddtop.policy import POLICY
from ddtop.present.gpus.gpu_list import is_free
from ddtop.present.gpus.gpu_text import driver_text
from ddtop.present.groups import group_waits, order_of
from ddtop.present.hosts.hosts import clock_text
from ddtop.present.stacks.dump_sets import answers, around, merged_of
from ddtop.relay.arrivals_trigger import ArrivalsTrigger
from ddtop.relay.gpus.ras import Ras
from ddtop.wire.gpu import Gpu, GpuWatch
from ddtop.wire.hosts import LEAF
from tests.ui import builders, dumps

ROOM = Path(ddtop.__file__).parent
EDGES = ("cli", "relay/server.py", "viewer/thresholds.py")
"""The programs choose the policy. `viewer/thresholds.py` keeps the choice of a viewer's process."""
STARTS = ("cli", "ui", "viewer/follower.py", "viewer/replay.py", "viewer/routes")
"""Where a viewer begins to follow a job, or draws it: these ask for that choice and pass it on."""
LONG_S = 3600.0
HANG, VERDICT = builders.hang()


def with_(**changes):
    """Another policy than that of the commands."""
    return replace(POLICY, **changes)


def modules_that_import(name):
    return {
        path.relative_to(ROOM).as_posix()
        for path in ROOM.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.alias) and node.name == name
    }


@pytest.mark.parametrize(("name", "allowed"), [("POLICY", EDGES), ("chosen", STARTS)])
def test_only_programs_choose_the_policy(name, allowed):
    """A program that embeds ddtop, or a test, may judge by other limits."""
    found = modules_that_import(name)

    assert found
    assert {path for path in found if not path.startswith(allowed)} == set()


def test_the_policy_says_from_when_a_wait_in_a_group_is_shown():
    assert group_waits(HANG, POLICY)
    assert group_waits(HANG, with_(wait_shown_s=LONG_S)) == {}


def test_the_policy_says_from_when_a_group_is_listed_first():
    waits = group_waits(HANG, POLICY)

    assert order_of(HANG, waits, ("other", *waits), POLICY)[0] != "other"
    later = with_(group_stuck_s=LONG_S)
    assert order_of(HANG, waits, ("other", *waits), later)[0] == "other"


def test_the_policy_says_how_long_a_reported_wait_is_named_beside_a_stack():
    snapshot = dumps.with_stacks(HANG)
    merged = merged_of(answers(snapshot, "r1"), VERDICT)

    assert around(snapshot, VERDICT, merged, None, POLICY).doing[0].startswith("waiting in")
    none = around(snapshot, VERDICT, merged, None, with_(wait_fresh_s=-1.0))
    assert not none.doing.get(0, "").startswith("waiting in")


def test_the_policy_says_which_gpu_is_free():
    gpu = Gpu(0, "GPU-a", 0.0, 1, 100)

    assert is_free(gpu, POLICY)
    assert not is_free(gpu, with_(gpu_free_ratio=0.001))


def test_the_policy_says_when_a_driver_is_silent():
    watch = GpuWatch(age_ms=20_000)

    assert driver_text(watch, POLICY)
    assert not driver_text(watch, with_(gpu_silent_s=LONG_S))


def test_the_policy_says_which_clock_is_shown_as_wrong():
    seen = HostSeen("a", "node1", LEAF, 3 * builders.SECOND, 0, builders.NOW)

    assert clock_text(seen, POLICY)
    assert not clock_text(seen, with_(clock_shown_s=LONG_S))


def times_asked(policy):
    """How often a relay asks for arrivals in a minute in which one of two ranks waits much more."""
    trigger, found = ArrivalsTrigger(policy), 0
    for second in range(60):
        for pid, ratio in enumerate((0.8, 0.0)):
            trigger.saw(pid, ratio, float(second))
        found += trigger.due(float(second))
    return found


def test_the_policy_says_how_often_the_relay_asks_for_arrivals():
    assert times_asked(POLICY) > 3
    assert times_asked(with_(arrivals_pauses_s=(LONG_S,))) == 1
    assert times_asked(with_(arrivals_stuck_s=LONG_S)) == 0


def is_stuck(policy):
    """Whether NCCL's RAS service counts the job as stuck that an agent has named for 5 s."""
    ras = Ras(policy)
    for second in range(5):
        ras.saw(float(second))
        ras.look(float(second), ())
    return ras.stuck(5.0)


def test_the_policy_says_when_nccl_is_asked():
    assert is_stuck(POLICY)
    assert not is_stuck(with_(ras_stuck_s=LONG_S))
