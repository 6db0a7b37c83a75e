"""Which role this relay has among the hosts of its job: alone, the hub, or a leaf.

The server uses one interface for all three. A relay that has leaves, or belongs to a hub, keeps its
role, even if an elastic restart moves rank 0, because the other hosts know it in that role.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

import msgspec

from ddtop.link.leaf_side import PLACES_MAX
from ddtop.link.relay_side import VIEW, RelayLink
from ddtop.relay.history import LATEST_HUB_MAX, FrameHistory
from ddtop.relay.hub.topology import HubSearch, Topology, names_of_this_host, topology_of
from ddtop.relay.hub.uplink import (
    ADDRESS_MAX,
    ENDS,
    ENDS_ASKED_MAX,
    LOST_S,
    VERSION,
    Uplink,
)
from ddtop.relay.requests import RelayRequests
from ddtop.relay.state_files import RelayPlace
from ddtop.wire import frames
from ddtop.wire.records import (
    ALONE,
    HUB,
    LEAF,
    AnyRecord,
    Command,
    Exit,
    Hello,
    HostClock,
    HubLink,
    Reply,
    Stacks,
)
from ddtop.wire.times import UNSTUCK, UNSTUCK_RANKS, rank_period_s

# -- The hub's side: the relays of the other hosts, what they may send, and which of them to ask
#
# A leaf speaks for its own host and for nothing else: the sender of each frame must be the host of
# the leaf, and the kind must be one that an agent or a relay sends. The hub knows the ranks of a
# leaf from their Hellos. So it knows how many answers an order for all ranks will have, and it
# answers with the reason for a host that is not connected.


LEAVES_MAX, RANKS_MAX = 1 << 14, 1 << 17
"""16,384 hosts of eight ranks."""
KNOWN = frozenset(
    (
        "Hello",
        "RankState",
        "Groups",
        "Stacks",
        "Arrivals",
        "HostState",
        "Exit",
        "CommStatus",
        "Order",
    )
)
WORDS, STATES = frozenset(("Command", "Reply")), frozenset(("RankState", "HostState"))
OF_HOST = frozenset(("HostState", "CommStatus", "Order"))
FRAMES_PER_S, FRAMES_PER_RANK_S = 100.0, 20.0
"""An agent sends about two frames a second, and its relay one for the host. These limits are at
least ten times as high, so only a faulty or hostile leaf reaches them."""
BURST_S = 30.0
"""The frames of this many seconds may arrive at once: a leaf that was away sends everything
again."""
FLOOD_SAID_S = 60.0
RANK_MAX = 1 << 17
HOSTS_TOLD = 64
ORDERS_MAX, ORDER_S = 64, 10.0
NOT_CONNECTED = "its host is not connected"
HOST_OVER_S = 60.0
"""No rank lives on a host that is cut off for this time. A killed relay is back within ten
seconds, a network within a minute, and torch's own agents give each other up sooner."""


class _Head(msgspec.Struct, frozen=True, array_like=True, tag="Stacks"):
    """The first fields of `Stacks`: which process has answered which request."""

    request: str
    of_rank: int | None
    pid: int
    taken_unix_ns: int = 0
    method: str = ""
    threads: msgspec.Raw = msgspec.Raw()
    why: str | None = None
    worker: bool = False


_stacks_head = msgspec.msgpack.Decoder(_Head)


@dataclass
class Leaf:
    """A relay of another host (or of another launcher on this one).

    `peer`: the connection that it uses; `others`: further connections over which it has asked to
    enlist. `pids`: its living ranks by process; `stuck`: the processes whose last report says that
    they are stuck; `asked`: for each request the processes that have not answered yet; `elsewhere`:
    the addresses at which its ranks wait for other hosts.
    """

    sender: str
    run: str
    host: str
    instance: str
    peer: bytes
    heard: float
    connected: bool = True
    over: bool = False
    others: set[bytes] = field(default_factory=set)
    pids: dict[int, int | None] = field(default_factory=dict)
    stuck: set[int] = field(default_factory=set)
    asked: dict[str, set[int]] = field(default_factory=dict)
    elsewhere: tuple[str, ...] = ()
    credit: float = 0.0
    credit_at: float = 0.0
    refused: int = 0
    flooded_at: float = float("-inf")


@dataclass(frozen=True, slots=True)
class _Order:
    """A viewer's order that a leaf has been given."""

    viewer: bytes
    leaf: bytes
    at: float


class Hub:
    """All leaves of one hub. Used by the relay's loop only; times are its monotonic s.

    `say(peer, record)` answers a leaf or a viewer; `unanswered(stacks)` tells everyone that no
    stacks will come.
    """

    def __init__(
        self,
        job: str,
        run: str,
        instance: str,
        history: FrameHistory,
        say: Callable[[bytes, AnyRecord], None],
        unanswered: Callable[[Stacks], None],
    ) -> None:
        self._job, self._run, self._instance, self._history = job, run, instance, history
        self._say, self._unanswered = say, unanswered
        self._leaves: dict[tuple[str, str], Leaf] = {}
        self._peers: dict[bytes, Leaf] = {}
        self._orders: dict[str, _Order] = {}
        self._ranks = 0
        self.where = Topology()
        self.ended = False
        self.elsewhere: tuple[str, ...] = ()
        self.garbled = self.dropped = 0

    # -- what comes in

    def take(
        self, peer: bytes, parts: list[bytes], now: float
    ) -> list[tuple[frames.Envelope, bytes]]:
        """Take in frames of a leaf. Returns those that are to be kept and forwarded.

        Frames that are meant for the hub itself are handled and answered here.
        """
        leaf = self._peers.get(peer)
        kept: list[tuple[frames.Envelope, bytes]] = []
        for data in parts:
            try:
                envelope = frames.open_envelope(data)
                if envelope.kind in WORDS:
                    self._on_word(peer, envelope, now)
                    leaf = self._peers.get(peer)
                elif leaf is None:
                    self.dropped += 1
                elif self._is_honest(leaf, envelope, now) and self._note(leaf, envelope, data):
                    kept.append((envelope, data))
            except frames.WireError:
                self.garbled += 1
        if leaf is not None:
            leaf.heard = now
        return kept

    def _is_honest(self, leaf: Leaf, envelope: frames.Envelope, now: float) -> bool:
        leaf.credit -= 1.0
        if leaf.credit < 0.0 and not self._credit(leaf, now):
            leaf.refused += 1
            self.dropped += 1
            return False
        rank, kind = envelope.rank, envelope.kind
        fits = (
            kind in KNOWN
            and envelope.sender == leaf.sender
            and (rank is None or 0 <= rank < RANK_MAX)
        )
        if not fits or (envelope.pid is None and kind not in OF_HOST):
            self.garbled += 1
            return False
        return True

    def _credit(self, leaf: Leaf, now: float) -> bool:
        """Add the number of frames that its ranks may have sent since the last call."""
        rate = _rate(leaf)
        leaf.credit = min(leaf.credit + rate * (now - leaf.credit_at), rate * BURST_S)
        leaf.credit_at = now
        if leaf.credit >= 0.0:
            return True
        leaf.flooded_at = now
        return False

    def _note(self, leaf: Leaf, envelope: frames.Envelope, data: bytes) -> bool:
        """Remember what a frame says of the leaf's ranks.

        Returns False if the same frame came before.
        """
        kind, pid = envelope.kind, envelope.pid
        if kind in STATES:
            if pid is not None:
                if envelope.stuck_key is None:
                    leaf.stuck.discard(pid)
                elif pid in leaf.pids:
                    leaf.stuck.add(pid)
            return True
        # A leaf that was away for a moment sends all facts again. They still show which ranks
        # live.
        new = not self._history.has(envelope, data)
        if kind == "Hello":
            return self._on_hello(leaf, envelope) and new
        if kind == "Exit":
            if pid is not None and leaf.pids.pop(pid, self) is not self:
                self._ranks -= 1
                leaf.stuck.discard(pid)
            return new and isinstance(frames.open_record(envelope), Exit)
        if new and kind == "Stacks" and pid is not None:
            try:
                head = _stacks_head.decode(envelope.record)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise frames.WireError(str(error)) from None
            waiting = leaf.asked.get(head.request)
            if waiting is not None and not head.worker:
                waiting.discard(pid)
                if not waiting:
                    del leaf.asked[head.request]
        return new

    def _on_hello(self, leaf: Leaf, envelope: frames.Envelope) -> bool:
        record = frames.open_record(envelope)
        if not isinstance(record, Hello) or record.pid != envelope.pid:
            raise frames.WireError("a Hello of somebody else")
        if record.pid not in leaf.pids:
            if self._ranks >= RANKS_MAX:
                self.dropped += 1
                return False
            self._ranks += 1
            leaf.credit += FRAMES_PER_RANK_S
        leaf.pids[record.pid] = record.rank
        return True

    def _on_word(self, peer: bytes, envelope: frames.Envelope, now: float) -> None:
        record = frames.open_record(envelope)
        leaf = self._peers.get(peer)
        if isinstance(record, Command) and record.name == "enlist":
            self._on_enlist(peer, envelope.sender, record, now)
        elif leaf is None:
            self._say(peer, Reply("unlisted", ok=False, instance=self._instance))
        elif isinstance(record, Command) and record.name == "beat" and len(record.arguments) >= 3:
            had = time.time_ns()
            leaf.over = record.arguments[2] == "over"
            leaf.connected = True
            if leaf.others:
                self._settle(leaf, peer)
            leaf.elsewhere = tuple(one for one in record.arguments[3:] if len(one) <= ADDRESS_MAX)
            text = f"{record.arguments[0][:20]},{had},{time.time_ns()}"
            self._say(peer, Reply("beat", text=text, instance=self._instance))
            if ends := self.ends():
                self._say(peer, Command(ENDS, instance=self._instance, arguments=ends))
        elif isinstance(record, Reply) and record.name == "signal":
            order = self._orders.get(record.instance)
            if order is not None and order.leaf == peer:
                del self._orders[record.instance]
                self._say(order.viewer, Reply("signal", ok=record.ok, text=record.text[:500]))
        else:
            self.garbled += 1

    # -- who belongs to us

    def _on_enlist(self, peer: bytes, sender: str, word: Command, now: float) -> None:
        why = self._why_not(word.arguments)
        _, _, _, run, _, _, host = (*word.arguments, *7 * ("",))[:7]
        key = (sender, run[:100])
        leaf = self._leaves.get(key)
        if why is None and leaf is None and len(self._leaves) >= LEAVES_MAX:
            why = f"{LEAVES_MAX} hosts are connected already"
        if why is not None:
            self._say(peer, Reply("enlist", ok=False, text=why, instance=self._instance))
            return
        if leaf is None:
            leaf = self._leaves[key] = Leaf(sender, run[:100], host[:100], word.instance, peer, now)
        else:
            leaf.others.add(leaf.peer)
            if leaf.instance != word.instance or len(leaf.others) > PLACES_MAX:
                self._settle(leaf, peer)
            if leaf.instance != word.instance:
                # This relay replaces one that was killed: it reports anew which ranks live.
                self._ranks -= len(leaf.pids)
                leaf.pids.clear()
                leaf.stuck.clear()
            leaf.instance, leaf.peer, leaf.heard, leaf.connected, leaf.over = (
                word.instance,
                peer,
                now,
                True,
                False,
            )
        leaf.credit, leaf.credit_at = _rate(leaf) * BURST_S, now
        self._peers[peer] = leaf
        self._say(peer, Reply("enlist", text=self._run, instance=self._instance))

    def _settle(self, leaf: Leaf, peer: bytes) -> None:
        """Note that the leaf uses this connection.

        If this host has several addresses, the leaf tries all of them and keeps one.
        """
        for other in leaf.others - {peer}:
            self._peers.pop(other, None)
        if leaf.peer != peer:
            self._peers.pop(leaf.peer, None)
        leaf.peer = peer
        leaf.others.clear()

    def _why_not(self, arguments: tuple[str, ...]) -> str | None:
        """Why this relay is not accepted; None if it is."""
        if len(arguments) < 7 or arguments[0] != VERSION:
            return "the hub runs another version of ddtop: install the same one on all hosts"
        _, part_of, job, run, world, master, _ = arguments[:7]
        if job != self._job:
            return f"another job ({self._job}) is there"
        if part_of:
            # A leaf that this run accepted once is accepted again, whatever has changed since.
            return None if part_of == self._run else "another run of this job is there"
        if self.ended:
            return "the run that is there has ended"
        if run != self._run and self._is_another_world(world, master):
            met = f" that meets at {self.where.master}" if self.where.master else ""
            return f"another job of {self.where.world_size} ranks{met} is there"
        return None

    def _is_another_world(self, world: str, master: str) -> bool:
        """Whether neither the world size nor the rendezvous address is ours.

        If one of them is ours, the difference in the other one may be the mistake that the user is
        looking for.
        """
        sizes_differ = (
            self.where.world_size is not None
            and world.isdigit()
            and world != str(self.where.world_size)
        )
        comparable = bool(master and self.where.master)
        return sizes_differ and (not comparable or master != self.where.master)

    def on_time(self, now: float) -> None:
        """Mark leaves as not connected that have been silent for too long; called once a second."""
        for leaf in self._leaves.values():
            self._credit(leaf, now)
            if leaf.connected and now - leaf.heard > LOST_S:
                leaf.connected = False
                for request, pids in leaf.asked.items():
                    self._answer_for(leaf, request, pids)
                leaf.asked.clear()
        self._ask_unstuck()
        self._orders = {
            ticket: order for ticket, order in self._orders.items() if now - order.at < ORDER_S
        }

    def _ask_unstuck(self) -> None:
        """If ranks report in turns and nearly all are stuck, ask for each report of the few others:
        the cause is among them."""
        if rank_period_s(self.where.world_size or 0) <= 1.0:
            return
        connected = [leaf for leaf in self._leaves.values() if leaf.connected]
        stuck = sum(len(leaf.stuck) for leaf in connected)
        unstuck = sum(len(leaf.pids) for leaf in connected) - stuck
        if unstuck > min(UNSTUCK_RANKS, stuck):
            return
        for leaf in connected:
            if len(leaf.stuck) < len(leaf.pids):
                self._say(leaf.peer, Reply(UNSTUCK, instance=self._instance))

    @property
    def connected(self) -> int:
        """Leaves that answer."""
        return sum(leaf.connected for leaf in self._leaves.values())

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the leaves' hosts, the first ones."""
        return tuple(sorted({leaf.host for leaf in self._leaves.values()}))[:HOSTS_TOLD]

    @property
    def living(self) -> int:
        """Ranks on the leaves that answer."""
        return sum(len(leaf.pids) for leaf in self._leaves.values() if leaf.connected)

    def over(self, now: float) -> bool:
        """As far as is known, no rank lives on any other host, and none will start there again."""
        return all(
            leaf.over or (not leaf.connected and now - leaf.heard > HOST_OVER_S)
            for leaf in self._leaves.values()
        )

    def complaint(self, now: float) -> str | None:
        """Which leaves send more than their ranks can have to report; None: no leaf does."""
        flooding = [leaf for leaf in self._leaves.values() if now - leaf.flooded_at < FLOOD_SAID_S]
        if not flooding:
            return None
        worst = max(flooding, key=lambda leaf: leaf.refused)
        return f"{worst.host} floods: {worst.refused} frames of it were dropped"

    def ends(self) -> tuple[str, ...]:
        """The addresses at which ranks wait for other hosts."""
        leaves = (leaf.elsewhere for leaf in self._leaves.values() if leaf.connected)
        every = chain(self.elsewhere, chain.from_iterable(leaves))
        return tuple(dict.fromkeys(every))[:ENDS_ASKED_MAX]

    # -- orders

    def ask_stacks(self, request: str, ranks: Collection[int] | None, how: str) -> int:
        """Have the leaves ask these ranks (None: all); returns how many answers will come."""
        count = 0
        for leaf in self._leaves.values():
            pids = {pid for pid, rank in leaf.pids.items() if ranks is None or rank in ranks}
            count += len(pids)
            if not pids:
                continue
            if not leaf.connected:
                self._answer_for(leaf, request, pids)
                continue
            while len(leaf.asked) >= ORDERS_MAX:
                del leaf.asked[next(iter(leaf.asked))]
            leaf.asked[request] = pids
            numbers = ",".join(str(pid) for pid in sorted(pids))
            self._say(
                leaf.peer,
                Command("stacks", instance=self._instance, arguments=(request, numbers, how)),
            )
        return count

    def count(self, ranks: Collection[int] | None) -> int:
        """How many processes `ask_stacks` would ask."""
        return sum(
            sum(ranks is None or rank in ranks for rank in leaf.pids.values())
            for leaf in self._leaves.values()
        )

    def ask_arrivals(self, request: str) -> None:
        """Have the leaves ask all their ranks."""
        for leaf in self._leaves.values():
            if leaf.connected:
                self._say(
                    leaf.peer, Command("arrivals", instance=self._instance, arguments=(request,))
                )

    def signal(
        self, viewer: bytes, ticket: str, arguments: tuple[str, ...], now: float
    ) -> Reply | None:
        """Have the leaf of this rank and pid send a signal.

        Returns None if the leaf will answer, else a refusal with its reason.
        """
        rank, pid = ((*arguments, "", "")[:2]) if len(arguments) == 3 else ("", "")
        if not (
            rank.isascii()
            and rank.isdigit()
            and pid.isascii()
            and pid.isdigit()
            and len(rank + pid) < 20
        ):
            return Reply("signal", ok=False, text="signal needs a rank, a pid and a number")
        for leaf in self._leaves.values():
            if leaf.pids.get(int(pid), self) != int(rank):
                continue
            if not leaf.connected:
                return Reply(
                    "signal",
                    ok=False,
                    text=f"rank {rank} is on {leaf.host}, which is not connected",
                )
            if len(self._orders) >= ORDERS_MAX:
                return Reply("signal", ok=False, text="too many signals at once")
            self._orders[ticket] = _Order(viewer, leaf.peer, now)
            self._say(leaf.peer, Command("signal", instance=ticket, arguments=arguments))
            return None
        return Reply(
            "signal",
            ok=False,
            text=f"rank {rank} with pid {pid} is not running on any host that is connected",
        )

    def _answer_for(self, leaf: Leaf, request: str, pids: Iterable[int]) -> None:
        for pid in pids:
            self._unanswered(
                Stacks(
                    request,
                    leaf.pids.get(pid),
                    pid,
                    time.time_ns(),
                    why=f"{NOT_CONNECTED} ({leaf.host})",
                )
            )


def _rate(leaf: Leaf) -> float:
    return FRAMES_PER_S + FRAMES_PER_RANK_S * len(leaf.pids)


# -- The three roles of a relay: alone, hub, leaf


BIND_AGAIN_S = 15.0
NAMED_LINGER_S = 10.0
"""The end of a job can be read from its files. While this relay keeps the port of DDTOP_HUB, the
other hosts of the next job cannot connect to their hub."""


class Relay(Protocol):
    """What this module needs of the relay; `server.Server` provides it."""

    job: str
    run: str
    sender: str
    host: str
    instance: str

    def seal(self, record: AnyRecord) -> bytes:
        """A record of ours in its envelope."""


class HubRole:
    """Used by the relay's loop only; times are its monotonic s.

    `here`: names and addresses of this host, asked now and then.
    """

    def __init__(
        self,
        relay: Relay,
        link: RelayLink,
        history: FrameHistory,
        requests: RelayRequests,
        here: Callable[[], frozenset[str]] | None = None,
    ) -> None:
        self._relay, self._link, self._history, self._requests = relay, link, history, requests
        self._here = here or names_of_this_host
        self._leaf = link.leaf()
        self._since: float | None = None
        self._where = Topology()
        self._port: int | None = None
        self._unbound: str | None = None
        self._bind_at = 0.0
        self.hub: Hub | None = None
        self.uplink: Uplink | None = None

    @property
    def role(self) -> str:
        """ALONE, HUB or LEAF."""
        return HUB if self.hub is not None else LEAF if self.uplink is not None else ALONE

    @property
    def obeys(self) -> bool:
        """The hub decides what the ranks of this host are asked for."""
        return self.uplink is not None and self.uplink.connected

    def look(self, hellos: Iterable[Hello], now: float) -> None:
        """Choose the role from what the ranks report; called after each Hello and once a second."""
        known = tuple(hellos)
        if not known:
            return
        self._since = self._since if self._since is not None else now
        relay = self._relay
        self._where = where = topology_of(
            relay.job, known, os.environ, self._here(), now - self._since
        )
        if self.hub is None and self.uplink is None and where.spans:
            self._become_hub() if where.is_hub else self._become_leaf()
        elif self.uplink is not None and where.is_hub and self.uplink.hub_run is None:
            self.uplink.close(len(known))
            self.uplink = None
            if where.spans is not False:
                self._become_hub()
        elif self.hub is not None and where.spans is False and not self.hub.hosts:
            self._become_alone()
        if self.hub is not None:
            self.hub.where = where
        if self.uplink is not None:
            world = str(where.world_size or "")
            self.uplink.set_topology(where, (relay.job, relay.run, world, where.master, relay.host))

    @property
    def decided(self) -> bool:
        """Whether another look can only repeat what is known."""
        return self.role != ALONE or self._where.spans is False

    def _become_hub(self) -> None:
        relay = self._relay
        self._history.latest_max = LATEST_HUB_MAX
        self.hub = Hub(
            relay.job,
            relay.run,
            relay.instance,
            self._history,
            self._say,
            self._requests.report_unanswered,
        )
        self._requests.hub = self.hub

    def _become_alone(self) -> None:
        """End the hub: all ranks turned out to be on this host, where they started slowly, one by
        one. No other host has to reach this relay.
        """
        self.hub = self._requests.hub = None
        self._port = self._unbound = None
        self._bind_at = 0.0
        self._link.unbind_public()

    def _become_leaf(self) -> None:
        relay = self._relay
        self.uplink = Uplink(
            self._leaf,
            HubSearch(relay.job, relay.sender),
            relay.seal,
            self._history.facts,
            lambda: self._history.frames_since(time.time_ns()),
            self._requests.obey,
        )

    def _say(self, peer: bytes, record: AnyRecord) -> None:
        if not self._link.send(VIEW, peer, self._relay.seal(record)) and self.hub is not None:
            self.hub.dropped += 1

    def on_time(self, now: float, living: int, over: bool) -> None:
        """Whatever is due."""
        if self.uplink is not None:
            self.uplink.on_time(now, living, over)
        if self.hub is not None and self._port is None and now >= self._bind_at:
            self._bind_at = now + BIND_AGAIN_S
            ports = (
                (self._where.wanted[1],) if self._where.wanted is not None else self._where.ports
            )
            self._port, why = self._link.bind_public(ports)
            self._unbound = None if self._port else f"other hosts cannot reach this one: {why}"

    def due(self) -> float:
        """When `on_time` wants to be called next."""
        if self.uplink is not None:
            return self.uplink.due()
        return self._bind_at if self.hub is not None and self._port is None else float("inf")

    def on_hub(self, socket: object, now: float) -> int:
        """Take in what the hub sends; returns how many frames could not be decoded."""
        garbled = 0
        for place, data in self._leaf.receive(socket):
            try:
                if self.uplink is not None:
                    self.uplink.on_frame(place, data, now)
            except frames.WireError:
                garbled += 1
        return garbled

    def put(self, envelope: frames.Envelope, data: bytes) -> None:
        """A frame of this host, for the hub."""
        if self.uplink is not None:
            self.uplink.put(envelope, data)

    def hub_link(self, now: float) -> HubLink | None:
        """For `HostState`; None where the job is on this host alone."""
        if self.uplink is not None:
            return self.uplink.hub_link()
        if self.hub is None:
            return None
        why = self._unbound or self.hub.complaint(now)
        address = f"{self._public_host()}:{self._port}" if self._port else None
        return HubLink(HUB, address, None, why, 0, self.hub.connected)

    def ends(self, elsewhere: tuple[str, ...], now: float) -> tuple[str, ...]:
        """Tell the hub at which addresses ranks of this host wait for other hosts. Returns those of
        all hosts, as far as they are known here."""
        if self.uplink is not None:
            self.uplink.elsewhere = elsewhere
            return self.uplink.asked_ends(now)
        if self.hub is None:
            return ()
        self.hub.elsewhere = elsewhere
        return self.hub.ends()

    def clock(self) -> HostClock | None:
        """This host's clock against the hub's."""
        return self.uplink.clock() if self.uplink is not None else None

    def complaints(self) -> tuple[str | None, ...]:
        """What is wrong with DDTOP_HUB, and why other hosts cannot connect; None for nothing."""
        return self._where.complaint, self._unbound

    def place(self) -> RelayPlace:
        """For the job file."""
        if self.uplink is not None:
            return RelayPlace(LEAF, part_of=self.uplink.hub_run, hub=self.uplink.hub_link().address)
        if self.hub is None:
            return RelayPlace()
        return RelayPlace(
            HUB, self._public_host() if self._port else None, self._port, hosts=self.hub.hosts
        )

    def linger_s(self, wanted_s: float) -> float:
        """How many seconds to stay after the end; `wanted_s` is the usual time.

        It is less at the port of DDTOP_HUB, because the next job wants to listen there too.
        """
        named = self._port is not None and self._where.wanted is not None
        return min(wanted_s, NAMED_LINGER_S) if named else wanted_s

    def _public_host(self) -> str:
        return self._where.public_host or self._relay.host

    def close(self, living: int) -> None:
        """Say goodbye."""
        if self.uplink is not None:
            self.uplink.close(living)
        self._leaf.close()
