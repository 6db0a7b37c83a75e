"""Programs in which other threads move on while their frames are read: `walking.py PROGRAM`.

Each ends with exit code 0 if all stacks that were read are true ones. A frame that is none ends it
with an exception or a crash.
"""

import gc
import os
import sys
import threading
import time

from ddtop.agent.stacks.walk import Walk

THRESHOLD, POSITIONS = 200, 80
"""The collector's threshold, and at how many different allocations it is made to start."""


def plainly(thread_id):
    """The walk that crashed a rank: each step is a bytecode."""
    frame, found = sys._current_frames().get(thread_id), []
    while frame is not None:
        code = frame.f_code
        place = code.co_filename, code.co_name, code.co_name, frame.f_lineno
        found.append((place, id(frame)))
        frame = frame.f_back
    return found


def safely(thread_id):
    """ddtop's walk."""
    return Walk([0], 0).stack(thread_id, 200)


# Frames of two sizes: what one function has left, the other one writes over.
exec(
    f"""
def large(left):
    {"; ".join(f"v{i} = {i}" for i in range(40))}
    if left: large(left - 1)
    else: GONE.release(); GO.acquire()
"""
)
GO, GONE, BACK = threading.Lock(), threading.Lock(), threading.Lock()


def small():
    waits()


def waits():
    BACK.release()
    GO.acquire()


def moves():
    """One thread: it waits in `small`, and when it may go on, in `large`."""
    while True:
        small()
        globals()["large"](3)


def named(stack):
    return [function for (_, function, _, _), _ in stack]


def moving(walk):
    """The collector starts at each allocation of the walk in turn, and the other thread moves on
    meanwhile."""
    for lock in (GO, GONE, BACK):
        lock.acquire()
    armed, reader = [], threading.get_ident()

    def let_go(phase, info):
        if phase == "start" and armed and threading.get_ident() == reader:
            armed.clear()
            GO.release()
            GONE.acquire()

    gc.callbacks.append(let_go)
    gc.set_threshold(THRESHOLD)
    thread = threading.Thread(target=moves, daemon=True)
    thread.start()
    below = ["moves", "run", "_bootstrap_inner", "_bootstrap"]
    true = (["waits", "small", *below], ["large"] * 4 + below)
    for position in range(POSITIONS):
        BACK.acquire()
        kept = []
        gc.collect()
        while gc.get_count()[0] < THRESHOLD - position:
            kept.append([])
        armed.append(True)
        names = named(walk(thread.ident))
        if armed:
            armed.clear()
            GO.release()
            GONE.acquire()
        assert names in true, names
        GO.release()


def busy(walk):
    """Two threads run functions of many shapes, finalisers and a callback of the collector hand the
    GIL over, and the collector starts at almost every allocation."""

    class Dies:
        def __init__(self):
            self.me = self

        def __del__(self):
            time.sleep(0)

    shapes = {}
    for shape in range(12):
        exec(
            f"""
def f{shape}(left):
    {"; ".join(f"v{i} = {i}" for i in range(shape * 5 + 1))}
    time.sleep(0)
    if left: SHAPES[(left * 7 + {shape}) % 12](left - 1)
    else: Dies()
    del v0
""",
            shapes,
        )
    shapes.update(time=time, Dies=Dies, SHAPES=[shapes[f"f{shape}"] for shape in range(12)])
    ended = []

    def work(shape):
        while not ended:
            shapes[f"f{shape}"](6)

    gc.callbacks.append(lambda phase, info: time.sleep(0.0001))
    threads = [threading.Thread(target=work, args=(shape,)) for shape in (3, 11)]
    for thread in threads:
        thread.start()
    gc.set_threshold(1)
    allowed = {*(f"f{shape}" for shape in range(12)), "work", "run", "_bootstrap_inner"}
    allowed |= {"_bootstrap", "__init__", "__del__", "<lambda>"}
    for _ in range(60):
        for thread in threads:
            names = named(walk(thread.ident))
            assert set(names) <= allowed, names
            assert names[-1] == "_bootstrap", names
    ended.append(True)
    for thread in threads:
        thread.join()


def seen(walk):
    """Another thread and forked children look whether the collector is on, while frames are
    read."""
    off, ended = [], []

    def watch():
        while not ended:
            if not gc.isenabled():
                off.append("thread")
            time.sleep(0)

    def fork():
        for _ in range(20):
            pid = os.fork()
            if pid == 0:
                os._exit(0 if gc.isenabled() else 1)
            if os.waitpid(pid, 0)[1]:
                off.append("child")
        ended.append(True)

    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=one) for one in (watch, fork)]
    for thread in threads:
        thread.start()
    while not ended:
        for thread in threads:
            walk(thread.ident)
    for thread in threads:
        thread.join()
    assert not off, off
    assert gc.isenabled()
    gc.disable()
    walk(threading.get_ident())
    assert not gc.isenabled(), "the program has switched it off"


def raising(walk):
    """Two threads handle what they raised in other functions, finalisers hand the GIL over, and the
    collector starts at almost every allocation."""
    del walk
    ended = []

    class Dies:
        def __del__(self):
            time.sleep(0)

    def deep(left, dies):
        time.sleep(0)
        if left:
            deep(left - 1, Dies())
        raise ValueError(left, "no more", dies)

    def work(depth):
        while not ended:
            try:
                deep(depth, Dies())
            except ValueError as error:
                error.args = error.args[:2]
                time.sleep(0)

    gc.callbacks.append(lambda phase, info: time.sleep(0))
    threads = [threading.Thread(target=work, args=(depth,)) for depth in (1, 9)]
    for thread in threads:
        thread.start()
    gc.set_threshold(1)
    reader, seen = Walk([0], 0), 0
    while seen < 30:
        for thread in threads:
            if (handled := reader.handled_exception(thread.ident)) is not None:
                functions = [function for _, function, _ in handled.places]
                assert handled.type == "ValueError", handled
                assert handled.arguments in ((), (0, "no more")), handled
                assert functions == ["work", *["deep"] * (len(functions) - 1)], functions
                seen += 1
    ended.append(True)
    for thread in threads:
        thread.join()


def beside(walk):
    """Another interpreter runs functions, with a GIL of its own."""
    try:
        import _interpreters as interpreters
    except ImportError:
        import _xxsubinterpreters as interpreters
    said, says = os.pipe()
    stops, stop = os.pipe()
    program = f"""
import os, select
def deep(left):
    return deep(left - 1) if left else sum(range(50))
os.write({says}, b"!")
while not select.select([{stops}], [], [], 0)[0]:
    deep(30)
"""
    own = threading.get_ident()
    assert named(walk(own))[-1] == "<module>"
    other = interpreters.create()
    run = getattr(interpreters, "exec", None) or interpreters.run_string
    thread = threading.Thread(target=run, args=(other, program))
    thread.start()
    os.read(said, 1)
    for _ in range(2000):
        assert walk(own) == walk(thread.ident) == []
    os.write(stop, b"!")
    thread.join()
    interpreters.destroy(other)
    assert named(walk(own))[-1] == "<module>"


if __name__ == "__main__":
    {"moving": moving, "busy": busy, "seen": seen, "raising": raising, "beside": beside}[
        sys.argv[1]
    ]({"plainly": plainly, "safely": safely}[sys.argv[2]])
    sys.stdout.flush()
    os._exit(0)
