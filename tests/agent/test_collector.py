"""The collector's time on the state page."""

from __future__ import annotations

import gc
import time
from functools import partial
from types import FunctionType, MethodType

import pytest

from ddtop.agent import collector
from ddtop.wire import page as layout


@pytest.fixture
def words():
    return [0] * layout.SLOTS_AT


def test_a_collection_is_on_the_page_while_it_lasts_and_counted_afterwards(words, monkeypatch):
    now = iter([1_000, 1_300, 5_000, 5_050])
    monkeypatch.setattr(time, "monotonic_ns", lambda: next(now))
    timer = collector.timer(words)

    seen = []
    for phase in ("start", "stop", "start", "stop"):
        timer(phase, {"generation": 2})
        seen.append((words[layout.GC_SINCE_AT], words[layout.GC_TOTAL_AT]))
    assert seen == [(1_000, 0), (0, 300), (5_000, 300), (0, 350)]


def test_the_collector_can_call_it(words):
    timer = collector.timer(words)
    gc.callbacks.append(timer)
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(timer)

    assert words[layout.GC_TOTAL_AT] > 0
    assert words[layout.GC_SINCE_AT] == 0


def test_it_has_no_bytecode(words):
    """Python code inside a collection is a place where the GIL changes hands."""
    timer = collector.timer(words)
    phases = type(timer.args[0])

    assert type(timer) is partial
    assert timer.func is getattr
    for phase in (phases.start, phases.stop):
        assert type(phase.fget) is partial
        assert phase.fget.func is next
    assert "__getattr__" not in vars(phases)
    assert "__getattribute__" not in vars(phases)
    assert not any(isinstance(one, FunctionType | MethodType) for one in vars(phases).values())
