"""Whether two looks at the threads of a process show that C code holds the GIL."""

import os
from dataclasses import replace

import pytest

from ddtop.policy import POLICY
from ddtop.relay.dumps.signal import ThreadRun, python_may_run, threads_of

MAIN, AGENT, LOOK_S = 100, 101, 0.25
MS = 1_000_000


def looks(letter="S", ran_ms=0, wakes=0, agent_letter="S", agent_wakes=50, agent_ran_ms=1):
    """Two looks, a quarter of a second apart, at the main and the agent's thread."""
    before = {MAIN: ThreadRun("S", 0, 10), AGENT: ThreadRun("S", 0, 900)}
    now = {
        MAIN: ThreadRun(letter, ran_ms * MS, 10 + wakes),
        AGENT: ThreadRun(agent_letter, agent_ran_ms * MS, 900 + agent_wakes),
    }
    return before, now


@pytest.mark.parametrize(
    "main",
    [{"letter": "S"}, {"letter": "D"}, {"letter": "R", "ran_ms": 240}],
    ids=["blocked in C", "in the kernel", "computing in C"],
)
def test_c_code_holds_the_gil_while_the_agent_asks_for_it_again_and_again(main):
    assert python_may_run(*looks(**main), LOOK_S, POLICY) is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"letter": "R", "ran_ms": 3}, "lacks CPU time"),
        ({"agent_letter": "R", "agent_ran_ms": 0, "agent_wakes": 3}, "no thread of it waits"),
        ({"agent_wakes": 2}, "no thread of it waits for the GIL"),
        ({"letter": "R", "ran_ms": 240, "agent_wakes": 4}, "no thread of it waits"),
    ],
    ids=["the main thread has no CPU", "nor has the agent", "an idle program", "starved agent"],
)
def test_otherwise_python_may_run(change, why):
    """At load 100 an agent is silent for seconds, and the program runs Python all the same."""
    assert why in (python_may_run(*looks(**change), LOOK_S, POLICY) or "")


def test_threads_that_cannot_be_read_or_that_change_prove_nothing():
    before, now = looks()

    assert "cannot be read" in (python_may_run(before, None, LOOK_S, POLICY) or "")
    assert "come and go" in (python_may_run(before, now | {102: now[AGENT]}, LOOK_S, POLICY) or "")


def test_the_threads_of_a_real_process_are_read():
    mine = threads_of(os.getpid())

    assert mine is not None
    assert mine[os.getpid()].ran_ns > 0
    assert threads_of(2**22 + 1) is None


@pytest.mark.parametrize("limit", [{"gil_wakes_per_s": 1e6}, {"busy_ratio": 1e6}])
def test_the_policy_says_what_proves_that_c_code_holds_the_gil(limit):
    computing = looks(letter="R", ran_ms=240)

    assert python_may_run(*computing, LOOK_S, POLICY) is None
    assert python_may_run(*computing, LOOK_S, replace(POLICY, **limit)) is not None
