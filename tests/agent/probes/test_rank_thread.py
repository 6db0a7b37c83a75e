"""Which thread runs the rank's program: real threads inside code with torch's file names."""

import _thread
import threading
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace

import pytest

from ddtop.agent import current
from ddtop.agent.probes import exceptions
from ddtop.agent.probes.main_thread import Lead
from ddtop.agent.stacks.frames import COLLECTIVE, LOADER, FrameReader
from ddtop.wire import page as layout

SECOND = 1_000_000_000
IN_TORCH = "/opt/env/lib/python3.11/site-packages/torch/"
FILES = {
    "all_reduce": IN_TORCH + "distributed/distributed_c10d.py",
    "_next_data": IN_TORCH + "utils/data/dataloader.py",
    "shutdown": IN_TORCH + "distributed/rpc/api.py",
    "sends": "/opt/env/lib/python3.11/site-packages/wandb/sender.py",
}


@pytest.fixture
def threads():
    """Starts threads that stay in a function of that name; gives their idents."""
    go_on, stack = threading.Event(), ExitStack()

    def stands(call=None, own_code=True):
        space = {"go_on": go_on, "inside": threading.Event()}
        body = "inside.set(); go_on.wait(20)"
        if call is not None:
            exec(compile(f"def {call}():\n    {body}", FILES[call], "exec"), space)
            body = f"{call}()"
        file = "/home/ada/train.py" if own_code else IN_TORCH + "pool.py"
        exec(compile(f"def train():\n    {body}", file, "exec"), space)
        thread = threading.Thread(target=space["train"], daemon=True)
        thread.start()
        stack.callback(thread.join, 20)
        assert space["inside"].wait(20)
        return thread.ident

    yield stands
    go_on.set()
    stack.close()


@contextmanager
def main_that(joins):
    """A double of the main thread: it joins another thread, or computes until it is stopped."""
    end = threading.Event()
    inside = threading.Event()

    def computes():
        inside.set()
        while not end.is_set():
            sum(range(100))

    def waits():
        inside.set()
        end.wait(20)

    thread = threading.Thread(target=waits if joins else computes, daemon=True)
    thread.start()
    assert inside.wait(20)
    try:
        yield thread.ident
    finally:
        end.set()
        thread.join(20)


def lead_of(main, stepper=0, looks=1, frames=None):
    lead = Lead(main, frames or FrameReader())
    for number in range(1, looks + 1):
        seen = lead.look(number * 2 * SECOND, stepper)
    return lead, seen


def test_the_thread_that_steps_the_optimizer_is_the_ranks(threads):
    """Ray Train, or a notebook's thread: the main thread only joins it."""
    with main_that(joins=True) as main:
        trainer = threads()
        lead, seen = lead_of(main, stepper=trainer)

    assert (lead.ident, seen.function, seen.file) == (trainer, "train", "/home/ada/train.py")
    assert lead.native_id == next(
        one.native_id for one in threading.enumerate() if one.ident == trainer
    )


def test_the_main_thread_that_steps_is_the_ranks_whatever_others_do(threads):
    with main_that(joins=True) as main:
        threads("all_reduce")
        lead, _ = lead_of(main, stepper=main)

    assert (lead.ident, lead.native_id) == (main, 0)


@pytest.mark.parametrize(("call", "activity"), [("all_reduce", COLLECTIVE), ("_next_data", LOADER)])
def test_before_the_first_step_the_thread_in_torchs_training_code_is_the_ranks(
    threads, call, activity
):
    """It hangs in its first collective or first batch, so it has not made a step."""
    with main_that(joins=True) as main:
        threads("sends")
        trainer = threads(call)
        lead, seen = lead_of(main, looks=3)

    assert (lead.ident, seen.activity) == (trainer, activity)


def test_a_main_thread_that_computes_is_the_ranks_though_another_thread_communicates(threads):
    """An asynchronous checkpoint runs in a thread with a group of its own."""
    with main_that(joins=False) as main:
        threads("all_reduce")
        lead, _ = lead_of(main, looks=3)

    assert lead.ident == main


def test_a_main_thread_that_waits_for_threads_of_another_kind_stays_the_ranks(threads):
    with main_that(joins=True) as main:
        threads("sends")
        threads("_next_data", own_code=False)
        lead, seen = lead_of(main, looks=3)

    assert (lead.ident, seen.waits_on) == (main, "lock")


def test_where_the_main_thread_only_serves_calls_the_thread_of_such_a_call_is_the_ranks(threads):
    """The training was called by RPC, and hangs in its own code: no frame of it is torch's."""
    main = threads("shutdown")
    threads("sends", own_code=False)
    serves = threads()
    lead, seen = lead_of(main, looks=3)

    assert (lead.ident, seen.function) == (serves, "train")


def test_where_several_calls_are_served_none_of_them_is_the_ranks(threads):
    main = threads("shutdown")
    threads(), threads()
    lead, seen = lead_of(main, looks=3)

    assert (lead.ident, seen.waits_on) == (main, "rpc-shutdown")


def test_of_several_calls_that_are_served_the_one_that_trains_is_the_ranks(threads):
    main = threads("shutdown")
    threads()
    trains = threads("all_reduce")

    assert lead_of(main, looks=3)[0].ident == trains


def test_the_kernels_number_of_a_thread_that_c_code_has_started_is_known():
    """`threading` does not know it, as it does not know the threads of RPC."""
    inside, end, found = threading.Event(), threading.Event(), []

    def stands():
        found.append((threading.get_ident(), threading.get_native_id()))
        inside.set()
        end.wait(20)

    _thread.start_new_thread(stands, ())
    assert inside.wait(20)
    walk = FrameReader().walk
    try:
        ((ident, native_id),) = found
        assert walk.native_id(ident) == native_id
        assert walk.native_id(12345) == 0
    finally:
        end.set()


def test_a_pools_thread_that_has_nothing_more_to_do_is_no_longer_the_ranks(threads):
    with main_that(joins=False) as main:
        idle = threads("sends", own_code=False)
        lead, _ = lead_of(main, stepper=idle)

    assert lead.ident == main


def test_a_thread_that_has_ended_is_no_longer_the_ranks():
    with main_that(joins=True) as main:
        gone = threading.Thread(target=int)
        gone.start()
        gone.join()
        lead, _ = lead_of(main, stepper=gone.ident)

    assert lead.ident == main


# -- its exceptions


class FakeRank:
    """The attributes of a rank that the hooks use."""

    def __init__(self):
        self.exception, self.frames = None, FrameReader()
        self.main_id = self.lead_id = threading.main_thread().ident
        self.stepper = 0
        self.page = SimpleNamespace(write=lambda _part, _data: None)

    def wake(self):
        pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("trains", [True, False])
def test_an_exception_that_ends_the_thread_that_trains_is_the_ranks(monkeypatch, trains):
    """In a thread that only logs, the exception belongs to that thread."""
    monkeypatch.setattr(threading, "excepthook", lambda _arguments: None)
    monkeypatch.setattr("sys.excepthook", lambda *_: None)
    monkeypatch.setattr("sys.exit", lambda *_: None)
    monkeypatch.setattr("os._exit", lambda *_: None)
    rank = FakeRank()
    monkeypatch.setattr(current, "_rank", rank)
    exceptions.install(rank)

    def train():
        rank.stepper = threading.get_ident() if trains else 0
        raise RuntimeError("loss is NaN")

    thread = threading.Thread(target=train, name="Trainer")
    thread.start()
    thread.join()

    found = rank.exception
    assert (found.type, found.text, found.thread) == ("RuntimeError", "loss is NaN", "Trainer")
    assert found.leads == trains


def test_the_page_has_room_for_the_thread():
    assert layout.LEAD_AT < layout.SLOTS_AT
