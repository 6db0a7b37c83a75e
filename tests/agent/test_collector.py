"""The collector's time on the state page."""

import gc
import json
import subprocess
import sys
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


@pytest.fixture
def truce():
    before = gc.get_threshold()
    truce = collector.Truce()
    yield truce
    truce.end()
    gc.set_threshold(*before)


FINALISERS = """
import gc, json, sys, threading, time
from pathlib import Path
from ddtop.agent.collector import Truce
from ddtop.agent.own_thread import OwnThread
from ddtop.link.rank_side import RankLink

main, ran, ticks, stop, hits = threading.get_ident(), [], [], [], []
class Cyclic:
    def __init__(self): self.itself = self
    def __del__(self):
        time.sleep(0)
        ran.append(None)
        if threading.get_ident() != main: hits.append(None)

def work():
    link = RankLink(Path("/nothing/listens/here"), truce and truce.sleep)
    while not stop and time.monotonic() < until:
        link.wait(0.0005)
        ticks.append(len([{number} for number in range(60)]))
    if truce: truce.end()

gc.set_threshold(int(sys.argv[1]), 2, 2)
truce = Truce() if sys.argv[2] == "truce" else None
until = time.monotonic() + 8
if truce: truce.begin()
thread = OwnThread(work)
thread.start()
while len(ticks) < 20 if truce else not hits:
    for _ in range(7): Cyclic()
    time.sleep(0)
    if time.monotonic() > until: break
stop.append(True)
thread.join(10)
print(json.dumps([len(ran), len(hits), len(ticks), gc.get_threshold()]))
"""


def finalisers(threshold, how):
    """How many finalisers ran, how many of them on our thread, its ticks, the thresholds."""
    command = [sys.executable, "-c", FINALISERS, str(threshold), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("threshold", [20, 700])
def test_no_finaliser_of_the_program_runs_on_our_thread(threshold):
    ran, ours, ticks, after = finalisers(threshold, "truce")

    assert ran > 100
    assert ticks > 3
    assert ours == 0
    assert after == [threshold, 2, 2]


def test_without_it_our_thread_runs_them():
    """This is what a second thread of Python does, and what the test above would see."""
    assert finalisers(20, "none")[1] > 0


def test_the_programs_thresholds_hold_while_our_thread_sleeps(truce):
    gc.set_threshold(700, 11, 12)
    truce.begin()
    awake = gc.get_threshold()[0]
    seen = []
    truce.sleep(lambda: seen.append(gc.get_threshold()))

    assert awake == collector.RAISED
    assert seen == [(700, 11, 12)]
    assert gc.get_threshold()[0] == collector.RAISED


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda: gc.set_threshold(50, 5, 5), (50, 5, 5)),
        (lambda: gc.set_threshold(0), (0, 11, 12)),
        # It multiplies what it reads, which is ours.
        (lambda: gc.set_threshold(gc.get_threshold()[0] * 10), (7000, 11, 12)),
        (lambda: None, (700, 11, 12)),
    ],
)
@pytest.mark.parametrize("asleep", [True, False])
def test_what_the_program_sets_meanwhile_stays(truce, change, expected, asleep):
    gc.set_threshold(700, 11, 12)
    truce.begin()
    if asleep:
        truce.sleep(change)
    else:
        change()
    seen = []
    truce.sleep(lambda: seen.append(gc.get_threshold()))
    truce.end()

    assert seen == [expected]
    assert gc.get_threshold() == expected


def test_a_program_without_collections_gets_none(truce):
    gc.set_threshold(0)
    truce.begin()

    assert gc.get_threshold()[0] == 0


def test_a_program_asks_whether_the_collector_is_on_and_hears_what_it_has_chosen(truce):
    truce.begin()
    on = gc.isenabled()
    gc.disable()
    truce.sleep(bool)
    off = gc.isenabled()
    gc.enable()

    assert (on, off) == (True, False)


def test_a_sleep_that_raises_leaves_our_thread_protected(truce):
    gc.set_threshold(700, 11, 12)
    truce.begin()
    with pytest.raises(ZeroDivisionError):
        truce.sleep(divmod, 1, 0)

    assert gc.get_threshold()[0] == collector.RAISED
