"""What a rank's thread waits for, read in this process by the probe itself."""

import inspect
import os
import threading
import time
from types import SimpleNamespace

import pytest

from ddtop.agent.probe import Tick
from ddtop.agent.stacks.frames import FrameReader
from ddtop.agent.waits.probe import AFTER_NS, EVERY_NS, WaitChain
from ddtop.wire import page as layout

LOCK, SEEN = threading.Lock(), [1]
SECOND = 10**9


def takes(release):
    with LOCK:
        release.release()


def holds(release):
    with LOCK:
        release.acquire()


def loops(release):
    need = 3
    while len(SEEN) < need:
        time.sleep(0.01)
    release.release()


class Started:
    """A thread, and what ends its wait."""

    def __init__(self, function, name):
        self.release = threading.Semaphore(0)
        self.thread = threading.Thread(target=function, args=(self.release,), name=name)
        self.thread.start()

    @property
    def ident(self):
        return self.thread.ident


def chain_of(ident, until=lambda chain: chain, own=(__file__,)):
    """The chain of a rank whose thread has stood there for long."""
    reader = FrameReader()
    reader.is_user = own.__contains__
    page = SimpleNamespace(words=[0] * 64)
    probe = WaitChain(SimpleNamespace(frames=reader, lead_id=ident, page=page))
    end = time.monotonic() + 20
    tick = Tick()
    tick.now = 100 * SECOND
    while True:
        tick.now += SECOND
        tick.seen = reader.look(ident)
        tick.seen.activity = 6
        probe.sample(tick)
        chain = probe.fields(tick)["chain"]
        if until(chain):
            return chain, page.words[layout.AWAITED_AT]
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def ended():
    """Threads that end with the test."""
    started = []
    yield lambda *of: started.append(Started(*of)) or started[-1]
    for one in started:
        one.release.release()
        SEEN.extend([2, 3])
    for one in started:
        one.thread.join(30)
    del SEEN[1:]


def test_the_thread_that_is_inside_a_with_of_the_same_lock_has_it(ended):
    holder = ended(holds, "refresher")
    while not LOCK.locked():
        time.sleep(0.01)
    (link,), awaited = chain_of(ended(takes, "lead").ident)

    assert (link.resource, link.named, link.who) == ("lock", "LOCK", "refresher")
    assert (link.place.function, awaited) == ("holds", holder.thread.native_id)


def test_a_loop_that_polls_is_told_with_the_values_of_its_condition(ended):
    (link,), awaited = chain_of(ended(loops, "lead").ident)

    assert (link.resource, link.named, awaited) == ("loop", "len(SEEN) < need", 0)
    assert link.does == "len(SEEN) is 1, need is 3"


def test_code_that_gives_a_named_pipe_as_its_file_is_not_opened(ended, tmp_path):
    fifo, scope = str(tmp_path / "code"), {"LOCK": threading.Lock()}
    os.mkfifo(fifo)
    exec(compile(inspect.getsource(holds), fifo, "exec"), scope)
    ended(scope["holds"], "other")
    (link,), _ = chain_of(ended(loops, "lead").ident, own=(__file__, fifo))

    assert link.resource == "loop"
    with pytest.raises(OSError, match="No such device"):
        os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)


def test_a_rank_that_has_moved_lately_is_not_asked(ended):
    ident = ended(loops, "lead").ident
    reader = FrameReader()
    asked = []
    reader.walk.threads = lambda: asked.append(1) or []
    probe = WaitChain(
        SimpleNamespace(frames=reader, lead_id=ident, page=SimpleNamespace(words=[0] * 64))
    )
    tick = Tick()
    tick.seen, tick.moved_at = reader.look(ident), 100 * SECOND
    tick.seen.activity = 6
    for later in (0, AFTER_NS - 1):
        tick.now = tick.moved_at + later
        probe.sample(tick)
    assert asked == []
    for later in (AFTER_NS, AFTER_NS + EVERY_NS - 1):
        tick.now = tick.moved_at + later
        probe.sample(tick)

    assert asked == [1]
