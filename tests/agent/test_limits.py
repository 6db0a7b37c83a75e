"""Each limit in a rank follows the limits that are passed in, and these agree with the policy."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ddtop.agent
from ddtop.agent.limits import LIMITS, AgentLimits
from ddtop.agent.notes import Notes
from ddtop.agent.probe import Tick
from ddtop.agent.probes.collectives import Collectives
from ddtop.agent.probes.loader import LoaderHistory
from ddtop.agent.probes.pace import IterationsProbe
from ddtop.agent.probes.peer_calls import PeerCallsProbe
from ddtop.diagnosis.rules.data import SamplerLimits
from ddtop.model.rank_facts import RankLimits
from ddtop.policy import POLICY
from ddtop.wire import page as layout
from ddtop.wire.page import CALLS
from ddtop.wire.records import Feed
from tests.agent.probing import fake_rank

SECOND = 1_000_000_000
HOUR_NS = 3600 * SECOND
ROOM = Path(ddtop.agent.__file__).parent


def test_the_rank_chooses_the_limits_and_hands_them_on() -> None:
    """No other part of the agent uses the module's own instance."""
    named = {
        path.relative_to(ROOM).as_posix()
        for path in ROOM.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.alias) and node.name == "LIMITS"
    }

    assert named == {"rank.py"}


def test_the_agent_and_the_policy_agree_where_both_have_a_threshold() -> None:
    """A rank does not import the policy, so the agent keeps its own limits."""
    assert LIMITS.feed_steps == POLICY.of(SamplerLimits).feed_steps
    assert LIMITS.stuck_ns == POLICY.of(RankLimits).waiting_s * SECOND
    # No rule asks about a wait that the agent does not remember.
    assert min(POLICY.stopped_limit_s, POLICY.still_limit_s) * SECOND > LIMITS.wait_kept_ns


def test_a_limit_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TypeError, match="no such limit: stuck_s"):
        AgentLimits(stuck_s=1)


def ratio_of_waits(limits: AgentLimits) -> float | None:
    probe = Collectives(fake_rank(limits))
    for _ in range(limits.wait_samples):
        probe.count_sample(waits=True)
    return probe.wait_ratio


def test_the_limits_say_of_how_many_samples_a_ratio_is_made() -> None:
    few = AgentLimits(wait_samples=4, wait_samples_least=5)

    assert ratio_of_waits(LIMITS) == 1.0
    assert ratio_of_waits(few) is None


@pytest.mark.parametrize(
    ("limits", "is_stuck"), [(LIMITS, True), (AgentLimits(stuck_ns=1 << 62), False)]
)
def test_the_limits_say_when_a_call_is_stuck(limits: AgentLimits, is_stuck: bool) -> None:
    page = SimpleNamespace(open_calls=lambda: [(CALLS.index("recv"), 1, 0, 0, 0)])
    rank: Any = SimpleNamespace(limits=limits, page=page)

    assert (PeerCallsProbe(rank).stuck_key() is not None) == is_stuck


def length_of_a_step(limits: AgentLimits) -> float | None:
    words = [0] * layout.SLOTS_AT
    words[layout.ITERATION_SOURCE_AT] = layout.SOURCE_OPTIMIZER
    rank: Any = SimpleNamespace(limits=limits, page=SimpleNamespace(words=words), notes=Notes())
    probe, at = IterationsProbe(rank), SECOND
    for step, took in enumerate((10, 10, 1, 1, 1), start=1):
        at += took * SECOND
        words[layout.ITERATION_AT], words[layout.STEP_AT] = step, at
        probe.sample(SimpleNamespace(now=at, pattern=None))  # type: ignore[arg-type]
    found: float | None = probe.fields(Tick()).keywords["step_ms"]
    return found


def test_the_limits_say_over_what_time_a_step_is_measured() -> None:
    assert length_of_a_step(LIMITS) == pytest.approx(1000)
    assert length_of_a_step(AgentLimits(step_window_ns=HOUR_NS)) == pytest.approx(3250)


def test_the_limits_say_which_loader_feeds_the_training() -> None:
    def dataset(limits: AgentLimits) -> str | None:
        history = LoaderHistory(limits)
        for name, steps in (("Train", 90), ("Valid", 3)):
            history.note_feed(
                Feed("Sampler", "BatchSampler", name, False, epochs=2, steps=steps, same_epoch=True)
            )
        return history.feed.dataset if history.feed is not None else None

    assert dataset(LIMITS) == "Train"
    assert dataset(AgentLimits(feed_steps=2)) == "Valid"
