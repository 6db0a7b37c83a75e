"""Where a thread is: the innermost frame of the user's own code, and what it waits on below it."""

import asyncio
import json
import multiprocessing.process
import queue
import selectors
import subprocess
import sys
import sysconfig
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

import ddtop
from ddtop.agent.stacks.frames import (
    TRACEBACK_MOST,
    FrameReader,
    Stay,
    ThreadLook,
    frames_of,
    user_frame_of,
)

LIBRARY = sysconfig.get_paths()


@pytest.mark.parametrize(
    ("file", "user"),
    [
        ("/home/ada/train.py", True),
        ("/home/ada/my_json/train.py", True),
        ("<stdin>", True),
        ("<string>", True),
        ("<ipython-input-3-abc>", True),
        ("<frozen importlib._bootstrap>", False),
        ("<__array_function__ internals>", False),
        (LIBRARY["stdlib"] + "/queue.py", False),
        (LIBRARY["purelib"] + "/torch/nn/modules/module.py", False),
        ("/opt/env/lib/python3.11/site-packages/x.py", False),
        ("/usr/lib/python3/dist-packages/x.py", False),
        (str(Path(ddtop.__file__).parent / "agent" / "runtime.py"), False),
        (str(Path(ddtop.__file__).parent / "demo" / "train.py"), True),
        (str(Path(ddtop.__file__).parent / "wire" / "records.py"), False),
        (json.__file__, False),
    ],
)
def test_a_file_is_the_users_own_or_a_library(file, user):
    """The demo counts as the user's own code: it is shown as a training script is shown."""
    assert FrameReader().is_user(file) is user


@contextmanager
def standing(function, *arguments):
    """The id of a thread that is inside that call."""
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    try:
        yield thread.ident
    finally:
        release()
        thread.join(5)


LOCK, QUEUE = threading.Lock(), queue.Queue()
CHILD = []


def release():
    """Release the threads that wait."""
    if LOCK.locked():
        LOCK.release()
    QUEUE.put(None)
    for child in CHILD:
        child.stdin.close()
        child.wait()
    CHILD.clear()


def waits_for_a_queue():
    # What released the tests before this one is still in it.
    QUEUE.queue.clear()
    QUEUE.get()


def waits_for_an_event(event):
    event.wait(10)


def waits_for_a_child():
    CHILD.append(
        subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
        )
    )
    CHILD[0].wait()


def looked_at(reader, ident, word):
    """The thread, as soon as it waits on that."""
    for _ in range(1000):
        seen = reader.look(ident)
        if seen is not None and seen.waits_on == word:
            return seen
        threading.Event().wait(0.002)
    raise AssertionError(f"never seen waiting on {word}")


def waits_for_a_future(event):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(event.wait, 10).result()


def waits_in_an_event_loop(event):
    async def waits():
        while not event.is_set():
            await asyncio.sleep(0.05)

    asyncio.run(waits())


def waits_for_what_a_child_says(event):
    program = [sys.executable, "-c", "import sys; sys.stdin.read(1)"]
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        release = threading.Thread(target=lambda: (event.wait(10), child.kill()))
        release.start()
        child.communicate()
        release.join()


@pytest.mark.parametrize(
    ("function", "word"),
    [
        pytest.param(
            waits_for_a_queue, "queue",
        ),
        (waits_for_a_child, "child"), (waits_for_an_event, "lock"), (waits_for_a_future, "future"),
        (waits_in_an_event_loop, "asyncio"), (waits_for_what_a_child_says, "child"),
    ],
)  # fmt: skip
def test_what_a_thread_waits_on_is_reported_from_the_library_below_it(function, word):
    arguments = (threading.Event(),) if function.__code__.co_argcount else ()
    with standing(function, *arguments) as ident:
        seen = looked_at(FrameReader(), ident, word)
        for event in arguments:
            event.set()

    assert (seen.function, Path(seen.file).name) == (function.__name__, "test_frames.py")


def test_where_mpi4py_has_a_pool_a_future_is_a_result_of_its_workers(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py.futures._core", sys)
    event = threading.Event()
    with standing(waits_for_a_future, event) as ident:
        looked_at(FrameReader(), ident, "results")
        event.set()


def test_a_thread_that_is_gone_has_no_place():
    assert FrameReader().look(1) is None


def looked(frame_id, line, callee=None):
    seen = ThreadLook()
    seen.frame_id = frame_id
    seen.function = "train"
    seen.file = "train.py"
    seen.line = line
    seen.callee = callee
    return seen


@pytest.mark.parametrize(
    ("looks", "since", "line_since"),
    [
        (((7, 3), (7, 3), (7, 3)), 0, 0),
        (((7, 3), (7, 4), (7, 4)), 0, 1),
        (((7, 3), (8, 3), (8, 3)), 1, 1),
        (((7, 3, "wait"), (7, 3, "wait"), (7, 3, "step")), 0, 2),
        (((7, 3), (7, 4), (7, 3)), 0, 2),
    ],
    ids=["it stands", "it went on", "another call of it", "another callee", "it came back"],
)
def test_since_when_a_thread_is_in_its_function_and_on_its_line(looks, since, line_since):
    stay = Stay()
    for now, look in enumerate(looks):
        stay.follow(looked(*look), now)

    assert (stay.since, stay.line_since) == (since, line_since)


def test_no_frame_outlives_a_look():
    """The locals of its frames are the activations of the whole model."""
    seen = FrameReader().look(threading.get_ident())

    assert seen.function == "test_no_frame_outlives_a_look"
    assert set(map(type, vars(seen).values())) <= {int, bool, str, type(None)}


def test_a_deep_recursion_is_looked_at_only_so_far():
    reader = FrameReader()

    def dive(depth):
        return reader.look(threading.get_ident()) if depth == 0 else dive(depth - 1)

    assert dive(600).function == "dive"


def test_the_innermost_user_frame_of_a_traceback_is_named():
    """json is deep below the user's load(), whose line is the one that helps."""

    def load():
        json.JSONDecoder().decode("{")

    try:
        load()
    except ValueError as error:
        found = user_frame_of(error.__traceback__, FrameReader())

    assert (found[0], Path(found[1]).name) == ("load", "test_frames.py")


def test_a_traceback_without_user_frames_names_none():
    with pytest.raises(ValueError, match="Expecting") as caught:
        json.JSONDecoder().decode("{")

    assert user_frame_of(caught.value.__traceback__.tb_next, FrameReader()) is None


def code_of(text, file):
    """What a source text defines, as if it had been imported from that file."""
    names = {}
    exec(compile(text, file, "exec"), names)
    return names


PROGRAM = """
class MyCallback:
    def on_train_batch_end(self, look):
        return look()
    def on_save(self, look):
        return self.save(look)
def main(fit, hook, look):
    return fit(hook, look)
def plain(look):
    return look()
"""
LIGHTNING = "/opt/env/lib/python3.11/site-packages/lightning/pytorch/trainer/call.py"
CLICK = "/opt/env/lib/python3.11/site-packages/click/core.py"
QUALIFIED = sys.version_info >= (3, 11)


def look_from(hook, library):
    """What is reported of a hook of the program that this library has called."""
    program = code_of(PROGRAM, "/home/ada/train.py")
    other = code_of("def _call_hook(hook, look):\n    return hook(look)\n", library)
    save = code_of("def save_checkpoint(look):\n    return look()\n", library)["save_checkpoint"]
    callback = program["MyCallback"]()
    callback.save = save
    look = partial(FrameReader().look, threading.get_ident())
    return program["main"](other["_call_hook"], getattr(callback, hook), look)


def test_a_hook_has_its_class_and_the_framework_that_has_called_it():
    seen = look_from("on_train_batch_end", LIGHTNING)

    assert (seen.function, seen.file, seen.line) == ("on_train_batch_end", "/home/ada/train.py", 4)
    assert seen.owner == ("MyCallback" if QUALIFIED else None)
    assert (seen.framework, seen.framework_call) == ("lightning", "_call_hook")
    assert not seen.inside


def test_what_a_hook_has_called_in_its_framework_says_more_than_who_has_called_the_hook():
    seen = look_from("on_save", LIGHTNING)

    assert (seen.function, seen.line) == ("on_save", 6)
    assert (seen.framework_call, seen.inside) == ("save_checkpoint", True)


def test_the_frames_of_the_parent_that_has_forked_a_process_are_not_its_own():
    """An idle worker of vLLM stands on the stack of the engine that has started it."""
    ring = "/opt/env/lib/python3.11/site-packages/vllm/distributed/device_communicators"
    dequeue = code_of("def dequeue(look):\n    return look()\n", f"{ring}/shm_broadcast.py")
    born = code_of(
        "def _bootstrap(target, look):\n    return target(look)\n", multiprocessing.process.__file__
    )
    fork = code_of("def _launch(born, *more):\n    return born(*more)\n", subprocess.__file__)
    engine = code_of("def start(fork, *more):\n    return fork(*more)\n", "/home/ada/serve.py")
    look = partial(FrameReader().look, threading.get_ident())
    seen = engine["start"](fork["_launch"], born["_bootstrap"], dequeue["dequeue"], look)

    assert (seen.function, seen.framework, seen.waits_on) == ("dequeue", "vllm", "orders")


def test_of_a_process_that_a_framework_has_started_the_frameworks_line_is_the_place():
    """Spawned ranks of Lightning have no frame of the program between two hooks."""
    other = code_of("def __next__(wait, look):\n    return wait(look)\n", LIGHTNING)
    wait = code_of("def select(look):\n    return look()\n", selectors.__file__)["select"]
    found = []
    look = FrameReader().look
    thread = threading.Thread(
        target=other["__next__"], args=(wait, lambda: found.append(look(threading.get_ident())))
    )
    with pytest.MonkeyPatch.context() as patch:
        # This test's own line does not count as a line of the program.
        patch.setattr(FrameReader, "_judge", lambda reader, file: file == "/home/ada/train.py")
        thread.start()
        thread.join()
    (seen,) = found

    assert (seen.function, seen.file, seen.line) == ("__next__", LIGHTNING, 2)
    assert (seen.framework, seen.inside, seen.frame_id) == ("lightning", False, 0)


def test_a_library_that_trains_nothing_is_no_framework():
    seen = look_from("on_train_batch_end", CLICK)

    assert seen.function == "on_train_batch_end"
    assert (seen.framework, seen.framework_call) == (None, None)


def test_a_plain_function_has_no_class():
    plain = code_of(PROGRAM, "/home/ada/train.py")["plain"]
    seen = plain(partial(FrameReader().look, threading.get_ident()))

    assert (seen.function, seen.owner, seen.framework) == ("plain", None, None)


def raised(depth):
    """A traceback of this many frames, and the frame of this function."""

    def dive(left):
        if left <= 1:
            raise ValueError
        dive(left - 1)

    try:
        dive(depth)
    except ValueError as error:
        return error.__traceback__


def test_a_traceback_has_its_frames_innermost_first_and_knows_the_users_own():
    frames, omitted = frames_of(raised(2), FrameReader())

    assert [frame.function for frame in frames] == ["dive", "dive", "raised"]
    assert frames[0].user
    assert omitted == 0


def test_of_a_deep_traceback_both_ends_are_kept():
    frames, omitted = frames_of(raised(500), FrameReader())

    assert (len(frames), omitted) == (TRACEBACK_MOST, 501 - TRACEBACK_MOST)
    assert frames[-1].function == "raised"


class Between:
    """A walk that finds a thread between two lines."""

    def stack(self, thread_id, most):
        """A function of the program that calls a library."""
        library, own = f"{LIBRARY['stdlib']}/queue.py", "/home/ada/train.py"
        return [((library, "get", "Queue.get", None), 1), ((own, "step", "step", None), 2)]


def test_a_thread_between_two_lines_is_at_line_0():
    """Python knows no line while a function returns. A place without one could not be sent."""
    seen = FrameReader(Between()).look(1)

    assert (seen.function, seen.callee, seen.line) == ("step", "get", 0)
