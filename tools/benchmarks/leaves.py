"""Plays the relays of all hosts but the first of a simulated job: `python -m
tools.benchmarks.leaves RANKS HUB_PORT`.

Each has its own connection and uses the relay's own `Uplink`, `Outbox` and `LeafLink`; its ranks'
reports come from the simulation, once a second. Prints one JSON line when all have been enlisted,
then one a second of what was sent and dropped, until it is ended.
"""

from __future__ import annotations

import json
import resource
import select
import sys
import time
from collections.abc import Iterable, Iterator

import zmq

from ddtop import registry
from ddtop.link.leaf_side import LeafLink, place
from ddtop.relay.hub.topology import HubPlaces, HubSearch, Topology
from ddtop.relay.hub.uplink import ENLISTED, STATES, Uplink
from ddtop.sim.fleet import LOCAL_SIZE
from ddtop.sim.incidents import Scenario
from ddtop.sim.job import SECOND_NS, SLOT_NS, SimulatedJob
from ddtop.wire import frames
from ddtop.wire.records import AnyRecord, Command, Group, Groups, Reply, pack

RUN = "simulated"
LIVED_S = 60
TURN_S = 0.02


class SimLeaf:
    """One host's relay: its uplink, and the records of its ranks that a hub needs."""

    def __init__(self, host: int, job: SimulatedJob, hub: str, loop: Loop) -> None:
        self.sender = job.fleet.sender(host)
        self._facts: dict[tuple[str, int | None], bytes] = {}
        self._states: dict[tuple[str, int | None], bytes] = {}
        self._loop = loop
        self._sockets: list[zmq.Socket[bytes]] = []
        self.ends = LeafLink(loop.context, registry.secret(), self._register, self._unregister)
        self.uplink = Uplink(
            self.ends, _Known(hub), self._seal, self._tell, self._everything, self._obey
        )
        where = Topology(True, False, job.fleet.world_size, "node0:29500")
        self.uplink.set_topology(
            where, (job.name, RUN, str(job.fleet.world_size), "", job.fleet.host_name(host))
        )

    def put(self, envelope: frames.Envelope, data: bytes) -> None:
        """Take in a record of a rank of this host."""
        known = self._states if envelope.kind in STATES else self._facts
        known[envelope.kind, envelope.rank] = data
        self.uplink.put(envelope, data)

    def on_time(self, now: float) -> None:
        """Send what is due."""
        if self.uplink.due() <= now:
            self.uplink.on_time(now, LOCAL_SIZE, False)
            # A send consumes the descriptor's signal, so each send is followed by a look for input.
            self.receive()

    def receive(self) -> None:
        """Take in what the hub has sent."""
        for socket in tuple(self._sockets):
            for where, data in self.ends.receive(socket):
                self.uplink.on_frame(where, data, time.monotonic())

    def _register(self, socket: zmq.Socket[bytes]) -> None:
        self._sockets.append(socket)
        self._loop.register(self, int(socket.getsockopt(zmq.FD)))

    def _unregister(self, socket: zmq.Socket[bytes]) -> None:
        self._sockets.remove(socket)
        self._loop.unregister(int(socket.getsockopt(zmq.FD)))

    def _tell(self) -> Iterable[bytes]:
        return self._facts.values()

    def _everything(self) -> Iterable[bytes]:
        return [*self._facts.values(), *self._states.values()]

    def _seal(self, record: AnyRecord) -> bytes:
        return frames.seal(
            record, sender=self.sender, unix_ns=time.time_ns(), mono_ns=time.monotonic_ns()
        )

    def _obey(self, order: Command) -> Reply | None:
        """Made-up ranks have no stacks and no arrivals."""
        del order
        return None


class _Known(HubSearch):
    """A search whose hub is known from the start."""

    def __init__(self, hub: str) -> None:
        super().__init__("", "")
        self._places: HubPlaces | None = HubPlaces((hub,), hub)

    def begin(self, where: Topology) -> None:
        """There is nothing to search."""

    def take(self) -> HubPlaces | None:
        """The place of the hub at the first call, then None."""
        found, self._places = self._places, None
        return found


class Loop:
    """All of them in one thread. A poller with a thousand sockets asks each socket, so the kernel's
    epoll is used instead.
    """

    def __init__(self, ranks: int, hub: str) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self.context.set(zmq.MAX_SOCKETS, 8192)
        self._poll = select.epoll()
        self._owners: dict[int, SimLeaf] = {}
        began = (time.time_ns() - LIVED_S * SECOND_NS) // SLOT_NS * SLOT_NS
        self.job = SimulatedJob(ranks, scenario=Scenario(()), began_unix_ns=began, reports_per_s=1)
        self.leaves = {
            leaf.sender: leaf
            for host in range(1, self.job.fleet.hosts)
            for leaf in (SimLeaf(host, self.job, hub, self),)
        }
        self.sent = 0
        self.late_s = 0.0

    def register(self, leaf: SimLeaf, descriptor: int) -> None:
        """Call `leaf.receive` when there is input."""
        self._owners[descriptor] = leaf
        self._poll.register(descriptor, select.EPOLLIN)

    def unregister(self, descriptor: int) -> None:
        """Forget a leaf whose socket is about to be closed."""
        del self._owners[descriptor]
        self._poll.unregister(descriptor)

    def serve(self) -> None:
        """Run for ever."""
        done = time.time_ns() // SLOT_NS * SLOT_NS
        for data in (*self._groups(), *self.job.joining(done)):
            self._say(data)
        began, told, enlisted = time.monotonic(), 0.0, False
        done = time.time_ns() // SLOT_NS * SLOT_NS
        while True:
            for descriptor, _ in self._poll.poll(TURN_S):
                if descriptor in self._owners:
                    self._owners[descriptor].receive()
            if time.time_ns() >= done + SLOT_NS:
                for data in self.job.frames(done, done + SLOT_NS):
                    self._say(data)
                done += SLOT_NS
                self.late_s = (time.time_ns() - done) / SECOND_NS - SLOT_NS / SECOND_NS
            now = time.monotonic()
            for leaf in self.leaves.values():
                leaf.on_time(now)
            if not enlisted and all(leaf.uplink.state == ENLISTED for leaf in self.leaves.values()):
                enlisted = True
                print(
                    json.dumps({"enlisted": len(self.leaves), "seconds": now - began}), flush=True
                )
            if enlisted and now - told >= 1.0:
                told = now
                print(json.dumps(self._role()), flush=True)

    def _groups(self) -> Iterator[bytes]:
        """Each rank reports its three groups, as agents do."""
        fleet = self.job.fleet
        world = pack(Group("0", "default_pg", tuple(range(fleet.world_size)), "nccl"))
        for rank in range(LOCAL_SIZE, fleet.world_size):
            host, local = divmod(rank, LOCAL_SIZE)
            _, data, tensor = fleet.groups_of(rank)
            across = tuple(range(local, fleet.world_size, LOCAL_SIZE))
            yield frames.seal(
                Groups(
                    (
                        world,
                        pack(Group(data, f"dp_{local}", across, "nccl")),
                        Group(tensor, f"tp_{host}", tuple(fleet.ranks_of(host)), "nccl"),
                    )
                ),
                sender=fleet.sender(host),
                unix_ns=self.job.began_unix_ns,
                mono_ns=time.monotonic_ns(),
                rank=rank,
                pid=fleet.pid(rank, 0),
            )

    def _say(self, data: bytes) -> None:
        envelope = frames.open_envelope(data)
        leaf = self.leaves.get(envelope.sender)
        if leaf is not None:
            leaf.put(envelope, data)
            self.sent += 1

    def _role(self) -> dict[str, float]:
        links = [leaf.uplink.hub_link() for leaf in self.leaves.values()]
        return {
            "connected": sum(bool(link.connected) for link in links),
            "sent": self.sent,
            "dropped": sum(link.dropped for link in links),
            "late_s": round(max(self.late_s, 0.0), 2),
        }


def main() -> None:
    """Play them."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    Loop(int(sys.argv[1]), place("127.0.0.1", int(sys.argv[2]))).serve()


if __name__ == "__main__":
    main()
