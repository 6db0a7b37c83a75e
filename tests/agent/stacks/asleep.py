"""A thread that sleeps in a function of a test."""

import threading
from contextlib import contextmanager

from ddtop.agent.stacks.frames import FrameReader


@contextmanager
def asleep_in(function, *arguments):
    """The id of a thread that is in that function; `release` ends its only sleep."""
    release = threading.Lock()
    release.acquire()
    thread = threading.Thread(target=function, args=(release, *arguments), daemon=True)
    thread.start()
    reader = FrameReader()
    while (seen := reader.look(thread.ident)) is None or seen.function != function.__name__:
        pass
    try:
        yield thread.ident
    finally:
        release.release()
        thread.join(10)
