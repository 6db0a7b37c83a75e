"""What a rank's thread waits for, read in this process by the probe itself."""

import asyncio
import concurrent.futures
import contextlib
import gc
import inspect
import multiprocessing
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from ddtop.agent.probe import Tick
from ddtop.agent.stacks.frames import FrameReader
from ddtop.agent.waits.probe import (
    AFTER_NS,
    EVERY_NS,
    WaitChain,
    locked_by,
    started_in_place,
)
from ddtop.wire import page as layout
from ddtop.wire.records import CHANGES, STARVED

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


def chain_of(
    ident, until=lambda chain: chain, own=(__file__,), note_raised=None, among=None, waits=False
):
    """The chain of a rank whose thread has stood there for long. `among`: its other threads, None:
    all of this process. `waits`: for other ranks."""
    reader = FrameReader()
    if among is not None:
        reader.walk.threads = lambda: [ident, *among]
    reader.is_user = own.__contains__
    page = SimpleNamespace(words=[0] * 64)
    rank = SimpleNamespace(frames=reader, lead_id=ident, page=page, note_raised=note_raised)
    probe = WaitChain(rank)
    end = time.monotonic() + 20
    tick = Tick()
    tick.now, tick.waits = 100 * SECOND, waits
    while True:
        tick.now += SECOND
        tick.seen = reader.look(ident)
        tick.seen.activity = 6
        probe.sample(tick)
        chain = probe.fields(tick).keywords["chain"]
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


class Cabinet:
    """A program's object with a lock, of its own or of several."""

    def __init__(self, lock=None):
        self.lock = lock or threading.Lock()

    def keep(self, release):
        with self.lock:
            release.acquire()

    def take(self, release):
        with self.lock:
            release.release()


@pytest.mark.parametrize("shared", [True, False])
def test_a_lock_of_the_same_name_is_had_only_by_a_thread_that_has_that_object(ended, shared):
    first, second = Cabinet(), Cabinet()
    keeper, other = ended(first.keep, "keeper"), ended(second.keep, "other")
    while not (first.lock.locked() and second.lock.locked()):
        time.sleep(0.01)
    lead = ended((Cabinet(second.lock) if shared else second).take, "lead")
    (link,), _ = chain_of(lead.ident, among=[keeper.ident, other.ident])

    assert (link.named, link.who) == ("self.lock", "other")


class OfClass(Cabinet):
    """Its lock is that of its class, so that all have one."""

    lock = threading.Lock()

    def __init__(self):
        pass


class Asked(Cabinet):
    """Its lock is what a property gives."""

    def __init__(self):
        self._lock = threading.Lock()

    @property
    def lock(self):
        return self._lock


@pytest.mark.parametrize("kind", [OfClass, Asked])
def test_a_lock_that_is_no_attribute_of_the_object_itself_is_known_by_its_name(ended, kind):
    first = kind()
    holder = ended(first.keep, "keeper")
    while not first.lock.locked():
        time.sleep(0.01)
    lead = ended((kind() if kind is OfClass else first).take, "lead")
    (link,), _ = chain_of(lead.ident, among=[holder.ident])

    assert (link.named, link.who) == ("self.lock", "keeper")


class Journal:
    """A program's object with a lock that counts no owner."""

    def __init__(self):
        self.lock = threading.Lock()

    def add(self, other):
        # Another thread releases it.
        with contextlib.suppress(RuntimeError), self.lock:
            other.flush()

    def flush(self):
        with self.lock:
            pass

    def keep(self, release):
        with self.lock:
            release.acquire()


class Asks:
    """Another object of that program, as one that handles a signal."""

    def __init__(self, journal):
        self.journal = journal

    def flush(self):
        self.journal.flush()


@pytest.mark.parametrize("between", [lambda journal: journal, Asks])
def test_a_thread_that_takes_a_lock_twice_waits_for_itself(ended, between):
    journal = Journal()
    lead = ended(lambda _: journal.add(between(journal)), "lead")
    (link,), _ = chain_of(lead.ident, among=[])
    journal.lock.release()

    assert (link.resource, link.named, link.who, link.circle) == ("lock", "self.lock", "lead", True)


def test_a_lock_of_the_same_name_that_another_object_has_is_no_circle(ended):
    journal, other = Journal(), Journal()
    keeper = ended(other.keep, "keeper")
    while not other.lock.locked():
        time.sleep(0.01)
    lead = ended(lambda _: journal.add(other), "lead")
    (link,), _ = chain_of(lead.ident, among=[keeper.ident])

    assert (link.who, link.circle) == ("keeper", False)


def test_a_loop_that_polls_is_told_with_the_values_of_its_condition(ended):
    (link,), awaited = chain_of(ended(loops, "lead").ident)

    assert (link.resource, link.named) == ("loop", "len(SEEN) < need")
    assert awaited == layout.ENDED_CHILD
    assert link.does == "len(SEEN) is 1, need is 3"


class Shelf:
    """A store of torch, whose keys a program takes as locks."""

    def add(self, *_):
        return 2


def takes_key(release):
    store, key = Shelf(), "kernels/lock"
    while store.add(key, 1) != 1:
        if SEEN[1:]:
            return
        time.sleep(0.01)
    release.release()


def test_a_loop_that_takes_a_key_of_a_store_is_told_by_the_key(ended):
    (link,), _ = chain_of(ended(takes_key, "lead").ident)

    assert (link.resource, link.named, link.does) == ("store key", "'kernels/lock'", "takes")


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


def of_queue():
    """A thread that takes from a queue, and one that will feed it."""
    waited = queue.Queue()

    def takes(_):
        waited.get()

    def feeds(release):
        release.acquire()
        waited.put(1)

    return takes, feeds


def of_flag():
    """A thread that polls for an event, and one that will set it."""
    done = threading.Event()

    def polls(_):
        while not done.is_set():
            time.sleep(0.01)

    def sets(release):
        release.acquire()
        done.set()

    return polls, sets


def of_barrier():
    """A thread that has reached a barrier, and one that has not."""
    barrier = threading.Barrier(2)

    def reaches(_):
        barrier.wait()

    def comes_later(release):
        release.acquire()
        barrier.wait()

    return reaches, comes_later


@pytest.mark.parametrize(
    ("made", "links"),
    [
        (of_queue, [("ending", "waited.get()", "waited.put(1)")]),
        (of_barrier, [("object", "barrier", "uses")]),
        (of_flag, [("loop", "not done.is_set()", ""), ("object", "", "")]),
    ],
)
def test_the_thread_that_has_the_same_object_is_told(ended, made, links):
    lead, other = made()
    helper = ended(other, "helper")
    chain, awaited = chain_of(ended(lead, "lead").ident)

    assert [(link.resource, link.named, link.does) for link in chain] == links
    assert (chain[-1].who, chain[-1].place.function) == ("helper", other.__name__)
    assert (awaited, chain[-1].circle) == (helper.thread.native_id, False)


def test_a_thread_that_waits_for_the_same_object_is_not_who_has_it(ended):
    lead, other = of_queue()
    first, second = ended(lead, "first"), ended(lead, "second")
    asked = []

    def twice(_):
        asked.append(1)
        return len(asked) > 20

    chain, _ = chain_of(first.ident, twice)
    ended(other, "other").release.release()
    ended(other, "other").release.release()
    second.thread.join(20)

    # Only where the relay sees that it waits for its own process, that thread counts.
    assert [link.resource for link in chain] == ["itself"]


def of_pool(release):
    with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="embed") as pool:
        pool.submit(computes, release).result()


def of_any(release):
    with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="embed") as pool:
        concurrent.futures.wait([pool.submit(computes, release)])


def in_executor(release):
    async def load():
        await asyncio.get_running_loop().run_in_executor(None, computes, release)

    async def main():
        await asyncio.gather(asyncio.sleep(0), load())

    asyncio.run(main())


def computes(release):
    release.acquire()


@pytest.mark.parametrize("lead", [of_pool, of_any, in_executor])
def test_the_thread_of_an_executor_that_computes_a_future_is_told(ended, lead):
    chain, _ = chain_of(
        ended(lead, "lead").ident,
        lambda chain: chain and chain[-1].place and chain[-1].place.function == "computes",
    )

    assert chain[-1].who.startswith(("embed", "asyncio"))


def awaited(main):
    """A lead whose loop runs this until it is released."""

    def run(release):
        async def whole():
            loop, task = asyncio.get_running_loop(), asyncio.current_task()

            def end():
                release.acquire()
                loop.call_soon_threadsafe(task.cancel)

            threading.Thread(target=end).start()
            await main(asyncio.Lock())

        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(whole())

    return run


async def takes_twice(gate):
    async with gate:
        await takes_again(gate)


async def takes_again(gate):
    async with gate:
        pass


async def has_it(gate):
    async with gate:
        await asyncio.Event().wait()


class Node:
    """A program's object with a lock of its own."""

    def __init__(self):
        self.gate = asyncio.Lock()

    async def add(self, other):
        async with self.gate:
            await other.flush()

    async def flush(self):
        async with self.gate:
            pass


async def waits_for_another_node(_gate):
    full = Node()
    await full.gate.acquire()
    await Node().add(full)


async def waits_for_another(gate):
    keeper = asyncio.create_task(has_it(gate), name="keeper")
    await asyncio.sleep(0)
    async with gate:
        await keeper


async def gathers_what_needs_its_lock(gate):
    async with gate:
        await asyncio.gather(takes_again(gate))


@pytest.mark.parametrize(
    ("main", "who", "function", "circle"),
    [
        (takes_twice, "task Task-", "takes_twice", True),
        (gathers_what_needs_its_lock, "task Task-", "gathers_what_needs_its_lock", True),
        (waits_for_another, "task keeper", "has_it", False),
    ],
)
def test_the_task_that_has_a_lock_of_asyncio_is_told(ended, main, who, function, circle):
    *_, link = chain_of(
        ended(awaited(main), "lead").ident, lambda found: found and found[-1].resource == "lock"
    )[0]

    assert (link.named, link.who[: len(who)], link.circle) == ("gate", who, circle)
    assert link.place.function == function


class Feed:
    """A program's object with what its tasks share."""

    def __init__(self):
        self.rows, self.ready = asyncio.Queue(), asyncio.Event()

    async def fill(self):
        await self.rows.get()
        self.ready.set()

    async def first(self):
        filler = asyncio.create_task(self.fill(), name="filler")
        await self.ready.wait()
        await filler

    async def drains(self):
        self.rows.put_nowait(1)
        filler = asyncio.create_task(self.fill(), name="filler")
        again = asyncio.create_task(self.fill(), name="again")
        await self.rows.join()
        await filler, await again


async def waits_for_a_task_that_sets(_gate):
    await Feed().first()


async def waits_for_items_to_be_done(_gate):
    await Feed().drains()


@pytest.mark.parametrize(
    ("main", "told"),
    [
        (waits_for_a_task_that_sets, ("", "task filler", "self.ready.set()", "fill")),
        (waits_for_items_to_be_done, ("queue", None, "undone", None)),
    ],
)
def test_the_task_that_uses_what_another_one_waits_for_is_told(ended, main, told):
    *_, link = chain_of(
        ended(awaited(main), "lead").ident,
        lambda found: found and found[-1].resource in ("object", "ending"),
        among=(),
    )[0][:2]

    assert (link.named, link.who, link.does, link.place and link.place.function) == told


def stands_in(chain, function):
    """Whether the task of a loop has come to this function."""
    return chain[0].resource == "task" and chain[0].place.function == function


def runs_trio(release):
    trio = pytest.importorskip("trio")
    send, receive = trio.open_memory_channel(0)

    async def take(stop):
        with stop:
            await receive.receive()

    async def whole():
        stop, token = trio.CancelScope(), trio.lowlevel.current_trio_token()
        threading.Thread(
            target=lambda: (release.acquire(), token.run_sync_soon(stop.cancel))
        ).start()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take, stop, name="taker")

    trio.run(whole)
    return send


def test_the_task_of_a_nursery_of_trio_that_does_not_end_is_told(ended):
    pytest.importorskip("trio")
    link, *_ = chain_of(
        ended(runs_trio, "lead").ident, lambda found: found and found[0].named.startswith("await")
    )[0]

    assert (link.who, link.named) == ("taker", "await receive.receive()")


class Rows(list):
    """A list of the program, as long as its data."""


async def waits_beside_many_rows(_gate):
    rows, ready = Rows(range(10**6)), asyncio.Event()

    async def keep(rows):
        await asyncio.Event().wait()
        return rows

    keeper = asyncio.create_task(keep(rows), name="keeper")
    await ready.wait()
    await keeper


def test_the_items_of_a_long_list_of_a_task_are_not_read(ended, monkeypatch):
    read, whole = [], gc.get_referents
    monkeypatch.setattr(
        "ddtop.agent.stacks.walk.gc.get_referents",
        lambda *of: read.append(found := whole(*of)) or found,
    )
    chain_of(
        ended(awaited(waits_beside_many_rows), "lead").ident,
        lambda found: found and stands_in(found, "waits_beside_many_rows"),
    )

    assert 0 < max(map(len, read)) < 1000


def test_a_lock_of_another_object_is_not_had_by_a_task_that_has_one_of_the_same_name(ended):
    chain, _ = chain_of(
        ended(awaited(waits_for_another_node), "lead").ident,
        lambda found: found and stands_in(found, "flush"),
    )

    assert [link.resource for link in chain] == ["task"]


def counts(release):
    left = 10**9
    while left > 0:
        left -= 1
        time.sleep(0.01)
        if release.acquire(blocking=False):
            return


def test_a_value_that_has_changed_since_the_first_look_shows_that_the_loop_goes_on(ended):
    (link,), _ = chain_of(
        ended(counts, "lead").ident, lambda found: found and found[0].does.endswith(CHANGES)
    )

    assert (link.resource, link.named) == ("loop", "left > 0")


def test_a_lock_that_another_thread_has_than_at_the_first_look_goes_around(ended):
    first = ended(holds, "first")
    while not LOCK.locked():
        time.sleep(0.01)
    lead = ended(takes, "lead")

    def turned(found):
        if found and found[0].who == "first":
            # The next one that has it is a thread whose text says so.
            first.thread.name = "second"
        return found and found[0].does == CHANGES

    (link,), _ = chain_of(lead.ident, turned)

    assert (link.resource, link.who) == ("lock", "second")


def asks(release):
    with LOCK:
        release.acquire()


def answers(_release):
    with LOCK:
        pass


def idles(release):
    release.acquire()


def test_of_several_threads_the_one_that_waits_for_the_ranks_lock_should_answer(ended):
    lead = ended(asks, "lead")
    while not LOCK.locked():
        time.sleep(0.01)
    handler, idle = ended(answers, "handler"), ended(idles, "idle")
    chain, awaited = chain_of(lead.ident, lambda chain: len(chain) == 2)

    assert [(link.resource, link.who, link.circle) for link in chain] == [
        ("itself", "handler", False),
        ("lock", "lead", True),
    ]
    assert awaited == 0
    assert handler.thread.is_alive()
    assert idle.thread.is_alive()


def test_the_thread_on_which_a_library_talks_is_followed(ended, tmp_path):
    scope = {}
    text = "def sync(release):\n    release.acquire()\n"
    exec(compile(text, str(tmp_path / "fsspec" / "asyn.py"), "exec"), scope)

    def reads(release):
        scope["sync"](release)

    talks = ended(idles, "fsspecIO")
    _, awaited = chain_of(ended(reads, "lead").ident)

    assert awaited == talks.thread.native_id


BOTH = threading.Semaphore()


def joins(_):
    with BOTH:
        saver = threading.Thread(target=saves, name="saver")
        saver.start()
        saver.join()


def saves():
    with BOTH:
        pass


def test_threads_that_wait_for_each_other_are_a_circle(ended):
    lead = ended(joins, "lead")
    chain, awaited = chain_of(
        lead.ident, lambda chain: len(chain) > 1 and chain[0].resource == "thread"
    )
    BOTH.release()

    assert [(link.resource, link.who, link.circle) for link in chain] == [
        ("thread", "saver", False),
        ("lock", "lead", True),
    ]
    assert awaited == 0


def test_a_lock_file_for_which_it_polls_is_told_with_its_holder(tmp_path):
    path = tmp_path / "hub.lock"
    code = "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX)"
    waits = "; print(1, flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code + waits, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        holder.stdout.readline()
        found = locked_by(str(path))
        holder.stdin.close()

    assert found == holder.pid
    assert locked_by(str(path)) is None
    assert locked_by(str(tmp_path / "missing")) is None


def test_a_process_that_has_started_in_the_place_of_another_one_is_found():
    code = "import sys; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as new:
        now, both = time.monotonic_ns(), (os.getpid(), new.pid)
        found = started_in_place(both, now)
        later = started_in_place(both, now + 60 * SECOND)
        alone = started_in_place((new.pid,), now)
        new.stdin.close()

    assert (found, later, alone) == (new.pid, None, None)


def test_a_long_name_with_line_breaks_fits_a_sentence(ended):
    lead, other = of_queue()
    ended(other, "a\nb " + "y" * 300)
    (link,), _ = chain_of(ended(lead, "lead").ident)

    assert link.who == "a b " + "y" * 55 + "…"


def test_an_await_of_a_child_process_is_followed_to_the_child(ended):
    children = []

    def lead(_):
        async def syncs():
            child = await asyncio.create_subprocess_exec("sleep", "99")
            children.append(child.pid)
            await child.wait()

        asyncio.run(syncs())

    chain, awaited = chain_of(
        ended(lead, "lead").ident, lambda chain: chain and "wait" in chain[-1].named
    )
    os.kill(children[0], 9)

    assert [link.resource for link in chain] == ["task"]
    assert awaited == layout.ITS_CHILDREN


def test_a_queue_whose_items_are_taken_and_not_marked_as_done_is_told(ended):
    """Its other thread waits for the next item."""
    items = queue.Queue()

    def takes(_):
        while items.get() is not None:
            pass

    def joins(_):
        items.put(1)
        items.join()

    worker = ended(takes, "worker")
    lead = ended(joins, "lead")
    (link,), _ = chain_of(lead.ident)
    items.put(None)
    for _ in range(2):
        items.task_done()
    worker.thread.join(20)

    assert (link.resource, link.named, link.who, link.does) == ("object", "queue", None, "undone")


def starves(release):
    """Each thread of the pool waits for a task that only a thread of the pool could do."""
    with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="tiles") as pool:
        inner = []

        def outer():
            inner.append(concurrent.futures.Future())
            inner[0].result()

        task = pool.submit(outer)
        threading.Thread(target=lambda: (release.acquire(), inner[0].set_result(1))).start()
        task.result()


def test_a_pool_whose_threads_all_wait_for_its_own_tasks_is_told(ended, monkeypatch):
    monkeypatch.setattr("ddtop.agent.waits.probe.children", lambda _: [])
    chain, _ = chain_of(
        ended(starves, "lead").ident, lambda found: found and found[-1].does == STARVED
    )

    assert (chain[-1].resource, chain[-1].nobody) == ("object", True)


def test_of_a_future_that_a_child_may_compute_nothing_is_said(ended, monkeypatch):
    monkeypatch.setattr("ddtop.agent.waits.probe.children", lambda _: [1])
    chain, _ = chain_of(ended(starves, "lead").ident)

    assert STARVED not in [link.does for link in chain]


def closes_its_executor(release):
    async def main():
        asyncio.get_running_loop().run_in_executor(None, computes, release)

    asyncio.run(main())


def test_a_loop_that_ends_waits_for_the_thread_of_its_executor(ended):
    (link,), awaited = chain_of(
        ended(closes_its_executor, "lead").ident,
        lambda found: found and found[0].resource == "thread",
    )

    assert (link.resource, link.place.function) == ("thread", "computes")
    assert awaited


async def groups(_gate):
    async with asyncio.TaskGroup() as group:
        group.create_task(Feed().fill(), name="filler")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="TaskGroup came with Python 3.11")
def test_the_task_for_which_a_task_group_waits_is_told(ended):
    (link, *_), _ = chain_of(
        ended(awaited(groups), "lead").ident, lambda found: found and stands_in(found, "fill")
    )

    assert (link.who, link.named) == ("filler", "await self.rows.get()")


class Handshake:
    """A program's object whose two tasks wait for each other."""

    def __init__(self):
        self.first, self.second = asyncio.Event(), asyncio.Event()

    async def one(self):
        await self.second.wait()
        self.first.set()

    async def other(self):
        await self.first.wait()
        self.second.set()


async def shakes_hands(_gate):
    await asyncio.gather(*map(asyncio.create_task, (Handshake().one(), asyncio.sleep(0))))


async def shakes_hands_with_each_other(_gate):
    both = Handshake()
    await asyncio.gather(*map(asyncio.create_task, (both.one(), both.other())))


@pytest.mark.parametrize(
    ("main", "circle"), [(shakes_hands, False), (shakes_hands_with_each_other, True)]
)
def test_two_tasks_that_wait_for_what_the_other_one_sets_are_a_circle(ended, main, circle):
    chain, _ = chain_of(
        ended(awaited(main), "lead").ident, lambda found: found and stands_in(found, "one")
    )

    assert [link.circle for link in chain[1:]] == [False, True] * circle


class Request:
    """What a library returns for `await`: an object that is no coroutine."""

    def __init__(self, made):
        self._made = made

    def __await__(self):
        return self._made.__await__()


async def requests(_gate):
    await Request(Feed().fill())


def test_the_coroutine_behind_an_object_with_await_is_read(ended):
    (link, *_), _ = chain_of(
        ended(awaited(requests), "lead").ident, lambda found: found and stands_in(found, "fill")
    )

    assert link.named == "await self.rows.get()"


LIBRARY = """\
import threading
gate = threading.Lock()
def read(wait):
    with gate:
        wait()
"""


@pytest.mark.parametrize("package", ["h5", "other"])
def test_the_thread_that_is_inside_a_lock_of_the_same_library_has_it(ended, tmp_path, package):
    """Two libraries may have locks of one name."""
    scopes = {}
    for name in ("h5", package):
        path = tmp_path / f"site-packages/{name}/files.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(LIBRARY)
        if name not in scopes:
            scopes[name] = {}
            exec(compile(LIBRARY, str(path), "exec"), scopes[name])
    has, wants = scopes["h5"], scopes[package]
    wants["gate"] = has["gate"]

    def prefetches(release):
        has["read"](release.acquire)

    def reads(_release):
        wants["read"](lambda: None)

    holder = ended(prefetches, "prefetch")
    while not has["gate"].locked():
        time.sleep(0.01)
    lead = ended(reads, "lead")
    known = package == "h5"
    chain, _ = chain_of(lead.ident, lambda found: bool(found) or not known, among=[holder.ident])

    assert [(link.named, link.who) for link in chain] == [("gate", "prefetch")] * known


def test_of_a_rank_that_waits_for_others_the_thread_is_told_that_waits_for_its_main_thread(ended):
    cabinet = Cabinet()
    lead = ended(cabinet.keep, "lead")
    while not cabinet.lock.locked():
        time.sleep(0.01)
    desk = ended(cabinet.take, "desk")
    (thread, lock), awaited = chain_of(lead.ident, among=[desk.ident], waits=True)

    assert (thread.resource, thread.who, awaited) == ("itself", "desk", 0)
    assert (lock.resource, lock.named, lock.circle) == ("lock", "self.lock", True)


class Watched(asyncio.Task):
    """A task of a class of the program."""

    asked = 0

    def done(self):
        Watched.asked += threading.current_thread() is threading.main_thread()
        return super().done()


def test_a_task_of_a_class_of_the_program_is_not_asked(ended):
    def lead(release):
        async def waits():
            await asyncio.to_thread(release.acquire)

        async def main():
            loop = asyncio.get_running_loop()
            loop.set_task_factory(lambda loop, coro, **more: Watched(coro, loop=loop, **more))
            await asyncio.gather(loop.create_task(waits()), asyncio.sleep(0))

        asyncio.run(main())

    chain, _ = chain_of(ended(lead, "lead").ident, lambda chain: chain and chain[0].place)

    assert chain[0].place.function == "main"
    assert Watched.asked == 0


def test_the_only_thread_that_waits_for_none_is_followed_though_it_runs_a_library(ended, tmp_path):
    """As one in which boto3 uploads. The thread of an executor that has no work is none."""
    code, scope = str(tmp_path / "site-packages/s3/upload.py"), {}
    talking, answer = socket.socketpair()
    exec(compile("def upload(s): s.recv(1)", code, "exec"), scope)
    done = threading.Event()

    def lead(_):
        done.wait()

    with concurrent.futures.ThreadPoolExecutor(2, thread_name_prefix="s3") as pool:
        pool.submit(int).result()
        pool.submit(scope["upload"], talking)
        pool.submit(int).result()
        try:
            (link,), awaited = chain_of(
                ended(lead, "lead").ident,
                lambda chain: chain and chain[0].resource == "thread",
                among=[thread.ident for thread in pool._threads],
            )
        finally:
            answer.send(b"1")
            done.set()
    talking.close()
    answer.close()

    assert (link.who[:2], link.place.function) == ("s3", "upload")
    assert awaited > 0


def test_of_a_line_that_would_end_the_wait_the_thread_that_has_ended_is_told(ended):
    cupboard, lived = Cupboard(), threading.Event()
    keeper = threading.Thread(target=lived.wait, name="filler")
    keeper.start()
    lead = ended(cupboard.take, "lead")

    looks = []

    def seen(chain):
        looks.append(chain)
        if len(looks) == 9:
            lived.set()
        return chain and chain[0].who == "filler"

    (link,), _ = chain_of(lead.ident, seen, among=())
    cupboard.full.set()

    assert (link.resource, link.nobody) == ("ending", True)


def waits_in_a_loop_of_another_thread(main):
    """A lead that waits for a coroutine which it gave to that loop."""
    loop = asyncio.new_event_loop()

    def run():
        with contextlib.closing(loop):
            loop.run_forever()

    runs = threading.Thread(target=run, name="io-loop")
    runs.start()

    def lead(_):
        with contextlib.suppress(concurrent.futures.CancelledError):
            asyncio.run_coroutine_threadsafe(main(), loop).result()

    async def end():
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        # The futures in other threads are told in callbacks of the loop.
        loop.call_soon(loop.call_soon, loop.stop)

    return lead, lambda: asyncio.run_coroutine_threadsafe(end(), loop), runs


async def reads():
    await asyncio.Event().wait()


BLOCKED = []


async def blocks():
    BLOCKED[-1].acquire()


@pytest.mark.parametrize(("main", "follows"), [(reads, False), (blocks, True)])
def test_a_coroutine_that_was_given_to_the_loop_of_another_thread_is_followed(ended, main, follows):
    """Also where it stops that loop."""
    BLOCKED.append(threading.Semaphore(0))
    lead, end, runs = waits_in_a_loop_of_another_thread(main)
    chain, awaited = chain_of(
        ended(lead, "lead").ident,
        lambda chain: chain and chain[0].resource == "task",
        among=[runs.ident],
    )
    BLOCKED[-1].release()
    end()
    runs.join()

    assert chain[0].place.function == main.__name__
    assert awaited == (runs.native_id if follows else 0)


class Cupboard:
    """A program's object whose threads wait for each other."""

    def __init__(self):
        self.full = threading.Event()

    def take(self, release):
        self.full.wait()
        release.release()

    def fill(self, release):
        release.acquire()
        self.full.set()


class Called(Cupboard):
    """A library calls a method of it from a thread that comes and goes."""

    def take(self, release):
        self.shut.wait()
        self.shut.set()
        release.release()

    def __init__(self):
        self.shut = threading.Event()

    def on_message(self):
        self.shut.set()


def test_who_may_be_woken_by_a_thread_that_is_not_there_yet_waits_in_no_circle(ended):
    called = Called()
    (link,), _ = chain_of(ended(called.take, "lead").ident, among=())
    called.on_message()

    assert (link.named, link.circle, link.nobody) == ("self.shut.wait()", False, True)
    assert link.at.function == "on_message"


@pytest.mark.parametrize("fills", [True, False])
def test_the_line_that_would_end_a_wait_is_told_and_who_comes_to_it(ended, fills):
    shelf = Cupboard()
    filler = ended((shelf if fills else Cupboard()).fill, "filler")
    lead = ended(shelf.take, "lead")
    (link,), awaited = chain_of(lead.ident, among=[filler.ident])
    shelf.full.set()

    assert (link.resource, link.named, link.does) == (
        "ending",
        "self.full.wait()",
        "self.full.set()",
    )
    assert (link.at.function, link.nobody) == ("fill", not fills)
    assert (awaited, link.who == "filler") == (filler.thread.native_id if fills else 0, fills)


@pytest.mark.parametrize("made", [threading.Condition, threading.Event])
def test_who_waits_alone_for_an_object_of_its_threads_is_told_so(ended, made):
    """The thread that should have notified it has ended."""
    awaited = made()

    def lead(_):
        with awaited if made is threading.Condition else contextlib.nullcontext():
            awaited.wait()

    waits = ended(lead, "lead")
    (link,), _ = chain_of(waits.ident, among=())
    if made is threading.Condition:
        with awaited:
            awaited.notify_all()
    else:
        awaited.set()

    assert (link.resource, link.named, link.does) == ("object", made.__name__.lower(), "alone")


def test_an_object_that_processes_share_needs_no_other_thread(ended):
    barrier = multiprocessing.get_context("spawn").Barrier(2)

    def lead(_):
        with contextlib.suppress(threading.BrokenBarrierError):
            barrier.wait()

    asked = []
    chain, awaited = chain_of(ended(lead, "lead").ident, lambda _: asked.append(1) or asked[30:])
    barrier.abort()

    assert (chain, awaited) == ((), layout.OF_CHILDREN)


def test_a_statement_that_fails_again_and_again_is_told_with_its_values(ended):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]

    def lead(release, port=port, password="hunter2"):
        while not release.acquire(blocking=False):
            try:
                socket.create_connection(("127.0.0.1", port)).send(password)
            except OSError:
                time.sleep(0.01)

    (link,), _ = chain_of(
        ended(lead, "lead").ident,
        # At some looks it is inside the call.
        lambda chain: chain and chain[0].resource == "retry" and chain[0].does,
    )

    assert link.named == 'socket.create_connection(("127.0.0.1", port)).send(password)'
    assert link.who == "ConnectionRefusedError"
    assert link.does == f"port is {port}, password is (redacted)"


def test_a_task_that_an_exception_has_ended_is_told_as_of_a_thread(ended):
    loops, told = [], []

    def lead(_):
        async def fails():
            raise KeyError(100)

        async def main():
            loops.append(asyncio.get_running_loop())
            made = loops[0].create_task(fails(), name="produce"), asyncio.Event()
            loops.append(made[1])
            await made[1].wait()

        asyncio.run(main())

    chain, _ = chain_of(
        ended(lead, "lead").ident,
        lambda chain: chain and told,
        note_raised=lambda error, name: told.append((type(error), error.args, name)),
    )
    loops[0].call_soon_threadsafe(loops[1].set)

    assert told[0] == (KeyError, (100,), "task produce")
    assert chain[0].resource == "task"
