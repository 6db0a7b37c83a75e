"""A relay in a thread, with ranks and viewers that connect to it."""

import contextlib
import threading
import time

from ddtop import registry
from ddtop.link.rank_side import RankLink
from ddtop.policy import POLICY
from ddtop.relay.server import Server
from ddtop.wire import frames
from ddtop.wire.records import Command, Hello, HostState, Reply
from tests.speaking import process_with_link, say
from tests.viewers import ViewerLink
from tests.waiting import until

DEADLINE_S = 15.0


class Stage:
    """A relay in a thread, its ranks and its viewers."""

    def __init__(self, home, launcher=0, linger_s=60.0, policy=POLICY):
        self.home = home
        self.server = Server("train", "r1", launcher, linger_s, policy=policy)
        self.thread = threading.Thread(target=self.server.serve)
        self.thread.start()
        self.links, self.children = [], []

    def rank(self, number=0, code="import sys; sys.stdin.readline()", **more):
        """A process and its agent's link, which has sent Hello with the fields of `more`."""
        child, link = process_with_link(registry.socket_path("train", "r1"), code)
        self.children.append(child)
        pid = child.pid
        self.links.append(link)
        ticks = registry.start_ticks(pid) or 0
        hello = Hello("train", "r1", 0, number, number, 2, "h", pid, ticks, script="train", **more)
        self.says(link, hello, number)
        return link, pid

    def says(self, link, record, rank=0, pid=None):
        pid = pid or getattr(record, "pid", None) or self.children[-1].pid
        say(
            link,
            frames.seal(
                record,
                sender=self.server.voice,
                unix_ns=time.time_ns(),
                mono_ns=time.monotonic_ns(),
                rank=rank,
                pid=pid,
            ),
        )

    def viewer(self, *commands, controller=False):
        """A viewer's link that has sent these commands."""
        link = ViewerLink(
            "127.0.0.1", self.server._link.port, registry.secret(), controller=controller
        )
        self.links.append(link)
        for command in commands or (Command("join", history_s=60.0),):
            link.send(frames.seal(command, sender="viewer", unix_ns=0, mono_ns=0))
        return link

    def heard(self, link, wanted):
        """All records that a viewer receives, up to the first wanted one."""
        found = []
        for data in link.receive(DEADLINE_S):
            found.append(frames.open_record(frames.open_envelope(data)))
            if wanted(found[-1]):
                return found
        raise AssertionError(f"never heard it, but {found}")

    def close(self):
        self.server.stopping = True
        waker = RankLink(registry.socket_path("train", "r1"))
        waker.send(b"")
        self.links.append(waker)
        self.thread.join(DEADLINE_S)
        for link in self.links:
            link.close()
        for child in self.children:
            child.kill()
            child.communicate()


def is_reply(name):
    return lambda record: isinstance(record, Reply) and record.name == name


def is_a(cls):
    return lambda record: isinstance(record, cls)


def sees_ranks(record):
    """Wait until the relay watches the rank's process."""
    return isinstance(record, HostState) and bool(record.processes)


@contextlib.contextmanager
def listed_job(home):
    """A stage with one rank, once its job is in the list of jobs."""
    found = Stage(home)
    found.rank()
    found.heard(found.viewer(), sees_ranks)
    until(registry.read_entries)
    yield found
    if found.thread.is_alive():
        found.close()
