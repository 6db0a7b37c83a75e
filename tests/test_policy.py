"""Text, relay and viewer follow the policy that they are given, as the rules do.

The rules have tests of their own: tests/diagnosis/test_policy.py. So does the agent, which has
limits: tests/agent/test_limits.py.
"""

from __future__ import annotations

import ast
import os
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

import ddtop
from ddtop import registry
from ddtop.agent.state_page import StatePage
from ddtop.model.state.facts import ProgressFacts, RankFacts, Snapshot, State
from ddtop.model.state.host_facts import HostSeen
from ddtop.policy import POLICY
from ddtop.present.gpus.gpu_list import is_free
from ddtop.present.gpus.gpu_text import driver_text
from ddtop.present.groups import group_waits, order_of
from ddtop.present.hosts.hosts import clock_text
from ddtop.present.stacks.dump_sets import answers, around, merged_of
from ddtop.relay.arrivals_trigger import ArrivalsTrigger
from ddtop.relay.dumps.collect import Dumps
from ddtop.relay.gpus.amd import AmdSmi
from ddtop.relay.gpus.ras import Ras
from ddtop.relay.journal_writer import JournalWriter
from ddtop.relay.processes import oom, sample
from ddtop.viewer import thresholds
from ddtop.viewer.follower import Follower
from ddtop.viewer.tally import tally_of
from ddtop.wire import page as layout
from ddtop.wire.gpu import Gpu, GpuWatch
from ddtop.wire.hosts import LEAF
from ddtop.wire.records import Hello
from tests.amdsmi import IO, FakeAmdGpu, FakeAmdSmi
from tests.ui import builders, dumps

ROOM = Path(ddtop.__file__).parent
EDGES = ("cli", "relay/server.py", "viewer/thresholds.py")
"""The programs choose the policy. `viewer/thresholds.py` keeps the choice of a viewer's process."""
STARTS = ("cli", "ui", "viewer/follower.py", "viewer/replay.py", "viewer/routes")
"""Where a viewer begins to follow a job, or draws it: these ask for that choice and pass it on."""
LONG_S = 3600.0
SECOND = 1_000_000_000
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


PLUMBING = {
    "judge.STEP_NS": "how often a second opinion counts, which is how often agents report",
    "clocks.OFFSET_MAX_NS": "no clock is 40 years off: a value beyond it is garbage",
    "series.KEEP_S": "how much is kept",
    "starting._TIMEOUT_S": "what torch does where the program gives no timeout",
    "starting._DEFAULT_TIMEOUT_S": "the same for one backend",
}
"""Numbers with a unit that are not in the policy: they do not judge."""


def test_no_threshold_of_model_and_diagnosis_is_outside_the_policy():
    unit = re.compile(r"_(NS|MS|S|RATIO|FACTOR|SHARE)$")
    found = {
        f"{path.stem}.{target.id}"
        for room in ("model", "diagnosis")
        for path in (ROOM / room).rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and unit.search(target.id)
    }

    assert found == set(PLUMBING)


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


@pytest.fixture
def watched():
    """This process, as a relay watches a rank."""
    ticks = registry.start_ticks(os.getpid())
    page = StatePage(os.getpid(), ticks)
    said = Hello(
        "j", "r", 0, 0, 0, 1, "h", os.getpid(), ticks,
        page_path=str(page.path),
    )  # fmt: skip
    found = sample.watch(said, time.monotonic_ns())
    yield found, page
    sample.forget(found)
    page.remove()


def test_the_policy_says_which_garbage_collection_is_reported(watched):
    rank, page = watched
    now = time.monotonic_ns()
    page.words[layout.GC_SINCE_AT] = now - SECOND

    assert sample.look(rank, now, POLICY).gc_since_unix_ns
    assert sample.look(rank, now, with_(gc_shown_s=LONG_S)).gc_since_unix_ns is None


def test_the_policy_says_which_kill_explains_a_death():
    record = b"6,1,1000000,-;Out of memory: Killed process 4711 (python)"
    minute_later = 61 * SECOND

    assert oom.kills_in([record], minute_later, POLICY.oom_recent_s)
    assert not oom.kills_in([record], minute_later, 30.0)


def test_the_policy_says_how_old_the_count_of_kills_is_at_least(watched):
    rank, _ = watched
    rank.oom_marked = (1, 5)

    rank.note_oom(40 * SECOND, LONG_S)
    assert rank.oom_marked == (1, 5)
    rank.note_oom(40 * SECOND, POLICY.oom_mark_s)
    assert rank.oom_marked[0] == 40 * SECOND


def test_the_policy_says_when_an_agent_is_silent(watched):
    rank, _ = watched
    rank.heard_mono_ns = time.monotonic_ns() - 60 * SECOND

    assert Dumps(None, None, POLICY)._is_silent(rank)
    assert not Dumps(None, None, with_(agent_silent_s=LONG_S))._is_silent(rank)


def test_the_policy_says_when_a_disk_is_slow(tmp_path):
    def problem(policy):
        writer = JournalWriter(tmp_path / "journal", 0, tuple, policy)
        writer._flushing_since = time.monotonic() - 60
        return writer.problem

    assert "has not taken anything" in problem(POLICY)
    assert problem(with_(recording_slow_s=LONG_S)) is None


def test_the_policy_says_when_a_gpu_of_amd_is_lost():
    def is_lost(policy):
        gpu = FakeAmdGpu()
        session = AmdSmi(FakeAmdSmi(gpu), policy)
        session.sample(0.0)
        gpu.raises["*"] = IO
        return [session.sample(float(second))[0].lost for second in range(1, 5)][-1]

    assert is_lost(POLICY)
    assert not is_lost(with_(gpu_lost_samples=100))


def test_the_policy_says_when_a_relay_is_silent_and_before_its_ranks_are(monkeypatch):
    follower = Follower("train")

    assert follower.policy.relay_silent_s < follower.policy.report_silent_s
    monkeypatch.setattr(thresholds, "_chosen", with_(relay_silent_s=LONG_S))
    assert Follower("train").policy.relay_silent_s == LONG_S


def test_the_policy_says_when_a_long_step_lowers_the_goodput():
    def goodput(policy):
        tally = None
        for second, iteration in [(0, 1), (1, 2), (2, 3), (5, 3)]:
            progress = ProgressFacts(iteration=iteration, step_ms=1000.0)
            rank = RankFacts(0, State.RUNNING, progress=progress)
            now = (1000 + second) * SECOND
            snapshot = Snapshot(
                "train", "r1", 0, now, True, 1, 1, (rank,), iteration=iteration
            )  # fmt: skip
            tally = tally_of(snapshot, tally, policy)
        return tally.goodput_ratio

    assert goodput(POLICY) < goodput(with_(goodput_step_factor=100.0))
