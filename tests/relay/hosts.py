"""Several relays of one job, as if each had a host: real sockets, real processes as ranks."""

import subprocess
import sys
import threading
import time
import uuid

from ddtop import registry
from ddtop.link.rank_side import RankLink
from ddtop.relay.server import Server
from ddtop.wire import frames
from ddtop.wire.records import Command, Hello, HostState, RankState, Reply
from tests.speaking import process_with_link, say
from tests.viewers import ViewerLink

DEADLINE_S = 20.0
OWN_PROCESS = """
import sys
from ddtop.relay import server
server.HOST_EVERY_S /= 5
server = server.Server(*sys.argv[1:3], 0, 60.0, sender=sys.argv[3])
print(server._link.port, flush=True)
server.serve()
"""


class Host:
    """One host: its relay (a thread, or a process that can be killed) and its played ranks."""

    def __init__(self, world, name, own_process=False, start=True):
        self.world, self.name, self.run = world, name, f"run-{name}"
        self.own_process, self.process, self.server, self.thread = own_process, None, None, None
        self.pids, self.links = {}, {}
        if start:
            self.start()

    def start(self):
        if self.own_process:
            command = [sys.executable, "-c", OWN_PROCESS, self.world.job, self.run, self.name]
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
            self.port = int(self.process.stdout.readline())
        else:
            self.server = Server(self.world.job, self.run, 0, 60.0, sender=self.name)
            self.port = self.server._link.port
            self.thread = threading.Thread(target=self.server.serve)
            self.thread.start()

    def kill(self):
        """kill -9, as closely as possible for a relay."""
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def rank(self, number, **more):
        """A rank starts here and sends Hello."""
        path = registry.socket_path(self.world.job, self.run)
        child, self.links[number] = process_with_link(path, "sys.stdin.readline()")
        self.world.children.append(child)
        self.pids[number] = child.pid
        self.world.links.append(self.links[number])
        self.greet(number, **more)
        return child

    def greet(self, number, **more):
        environment = {
            "LOCAL_WORLD_SIZE": "1",
            "WORLD_SIZE": str(self.world.size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
        } | more.pop("environment", {})
        pid = self.pids[number]
        ticks = registry.start_ticks(pid) or 0
        hello = Hello(
            self.world.job,
            self.run,
            0,
            number,
            0,
            self.world.size,
            self.name,
            pid,
            ticks,
            environment=environment,
            **more,
        )
        self.says(number, hello)

    def says(self, number, record, **more):
        data = frames.seal(
            record,
            sender=self.name,
            unix_ns=time.time_ns(),
            mono_ns=time.monotonic_ns(),
            rank=number,
            pid=self.pids[number],
            **more,
        )
        say(self.links[number], data)

    def viewer(self, controller=False):
        link = ViewerLink("127.0.0.1", self.port, registry.secret(), controller=controller)
        self.world.links.append(link)
        order(link, "join", history_s=60.0)
        return link

    def orders(self, number, name):
        """The next command of this name that the agent of this rank gets."""
        link, end = self.links[number], time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            data = link.receive()
            record = frames.open_record(frames.open_envelope(data)) if data else None
            if isinstance(record, Command) and record.name == name:
                return record
            link.wait(0.01)
        raise AssertionError(f"rank {number} was never told to {name}")

    def stop(self):
        if self.process is not None:
            if self.process.poll() is None:
                self.process.terminate()
                self.process.wait()
            self.process.stdout.close()
        if self.thread is not None and self.thread.is_alive():
            self.server.stopping = True
            waker = RankLink(registry.socket_path(self.world.job, self.run))
            waker.send(b"")
            self.thread.join(DEADLINE_S)
            waker.close()


class World:
    """A job on several hosts. Its name is its own, and so are the ports that follow from it."""

    def __init__(self, size=3):
        self.job, self.size = f"train-{uuid.uuid4().hex[:8]}", size
        self.hosts, self.links, self.children = [], [], []

    def host(self, name, **more):
        found = Host(self, name, **more)
        self.hosts.append(found)
        return found

    def close(self):
        for host in reversed(self.hosts):
            host.stop()
        for link in self.links:
            link.close()
        for child in self.children:
            child.kill()
            child.communicate()


def order(link, name, *arguments, history_s=0.0):
    command = Command(name, arguments=arguments, history_s=history_s)
    link.send(frames.seal(command, sender="viewer", unix_ns=0, mono_ns=0))


def heard(link, wanted):
    """All (envelope, record) up to the first wanted one; the viewer pings meanwhile."""
    found, end = [], time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        for data in link.receive(1.0):
            envelope = frames.open_envelope(data)
            found.append((envelope, frames.open_record(envelope)))
            if wanted(*found[-1]):
                return found
        order(link, "ping")
    last = {(envelope.kind, envelope.sender, envelope.rank): record for envelope, record in found}
    told = [getattr(record, "hub", None) or type(record).__name__ for record in last.values()]
    raise AssertionError(f"never heard it, but {told}")


def hears(link, wanted):
    """The first wanted record that a viewer receives."""
    return heard(link, wanted)[-1][1]


def gather(link, key, enough):
    """Records by `key(envelope, record)` (None: skipped), until they are `enough`."""
    found = {}

    def wanted(envelope, record):
        name = key(envelope, record)
        if name is not None:
            found[name] = record
        return enough(found)

    heard(link, wanted)
    return found


def host_of(name, wanted=lambda record: True):
    """The state of that host."""
    return lambda envelope, record: (
        isinstance(record, HostState) and envelope.sender == name and wanted(record)
    )


def connected(name):
    return host_of(name, lambda record: record.hub is not None and record.hub.connected)


def of_rank(number, kind):
    return lambda envelope, record: isinstance(record, kind) and envelope.rank == number


def reply(name):
    return lambda envelope, record: isinstance(record, Reply) and record.name == name


def iteration(number, at):
    return lambda envelope, record: (
        isinstance(record, RankState) and envelope.rank == number and record.iteration == at
    )
