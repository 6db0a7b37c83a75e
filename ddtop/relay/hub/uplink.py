"""The connection of a leaf to its hub: find it, enlist, send what the ranks report, follow orders.

The states are *looking* (no address is known), *asked* (the known addresses have been asked),
*enlisted* (a hub has accepted this leaf) and *lost* (the hub has not answered for six seconds, so
the leaf looks again). A leaf belongs to the first hub that accepts it, for its whole life: another
run of the same job must not get half of this one. Nothing here blocks, and nothing is queued while
no hub is connected. A hub that connects later gets the whole history.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from typing import Protocol

from ddtop.relay.hub.clock import HubClock
from ddtop.relay.hub.discovery import HubPlaces, HubSearch
from ddtop.relay.hub.outbox import STATES, URGENT, Outbox
from ddtop.relay.hub.pace import ReportPace
from ddtop.relay.hub.topology import Topology
from ddtop.wire import frames
from ddtop.wire.hosts import LEAF, HostClock, HubLink
from ddtop.wire.pace import UNSTUCK
from ddtop.wire.records import AnyRecord, Command, Reply

LOOKING, ASKED, ENLISTED, LOST = "looking", "asked", "enlisted", "lost"
ASK_S, AGAIN_S = 0.25, 2.0
"""Pauses before the next try: for an address without a connection, and for one that has not
accepted this leaf."""
SEEK_S = 15.0
"""Time between two searches, because names and job files change."""
BEAT_S, BEAT_FIRST_S, BEATS_FIRST = 2.0, 0.25, 6
"""The first beats follow each other quickly, so that the clock is known after a second."""
LOST_S = 6.0
"""Three beats. TCP itself would notice a cut cable only after a quarter of an hour."""
FLUSH_S, FLUSH_MANY_S, FLUSH_MOST_S = 0.25, 0.5, 1.0
MANY_RANKS, MOST_RANKS = 512, 4096
"""Agents report up to twice a second; of a large world the hub gets the newest report of each rank
once a second."""
MESSAGES_AT_ONCE = 8
LAST_WORDS_MS = 200
VERSION = "1"
"""Version of the messages between leaf and hub other than the records."""


class Ends(Protocol):
    """The connections to possible hubs; `link.leaf_side.LeafLink` provides them."""

    def keep_only(self, places: Iterable[str]) -> None:
        """Be connected to these places and no others."""

    def send(self, place: str, parts: list[bytes]) -> bool:
        """Queue frames as one message; False if they were not taken."""

    def close(self, linger_ms: int = 0) -> None:
        """Close them; queued frames have `linger_ms` to be sent."""


class Uplink:
    """The leaf's side. Times are monotonic s of the relay's loop.

    `seal` puts a record of ours in its envelope; `facts` and `everything` return the lasting facts
    and all frames of the history; `obey` follows an order of the hub.
    """

    def __init__(
        self,
        ends: Ends,
        seeker: HubSearch,
        seal: Callable[[AnyRecord], bytes],
        facts: Callable[[], Iterable[bytes]],
        everything: Callable[[], Iterable[bytes]],
        obey: Callable[[Command], Reply | None],
    ) -> None:
        self._ends, self._seeker, self._seal, self._everything, self._obey = (
            ends,
            seeker,
            seal,
            everything,
            obey,
        )
        self.instance = uuid.uuid4().hex[:12]
        self.state = LOOKING
        self.hub_run: str | None = None
        self._hub_instance = ""
        self._where = Topology()
        self._greeting: tuple[str, ...] = ()
        self._found = HubPlaces()
        self._asked: dict[str, float] = {}
        self._answers: dict[str, str] = {}
        self._place: str | None = None
        self._outbox = Outbox(facts)
        self._pace = ReportPace()
        self._clock = HubClock()
        self._heard = self._seek_at = self._ask_at = self._beat_at = self._flush_at = 0.0
        self._beats = 0
        self._role: tuple[str, ...] = ()
        self._lost_unix_ns: int | None = None
        self._dropped = 0

    # -- what the relay sends

    def set_topology(self, where: Topology, greeting: tuple[str, ...]) -> None:
        """Where to look, and how to introduce this leaf: job, run, world size, master, host."""
        if (
            where.hosts != self._where.hosts
            or where.ports != self._where.ports
            or where.wanted != self._where.wanted
        ):
            self._seek_at = 0.0
        self._where, self._greeting = where, greeting

    def put(self, envelope: frames.Envelope, data: bytes) -> None:
        """Queue a frame of this host; it is sent within a second."""
        if self.state != ENLISTED:
            self._dropped += self.hub_run is not None
            return
        world = self._where.world_size or 0
        if envelope.kind in STATES and not self._pace.admits(envelope, world, time.monotonic()):
            return
        self._outbox.put(envelope, data)
        if envelope.kind in URGENT:
            self._flush_at = 0.0

    @property
    def connected(self) -> bool:
        """The hub has accepted this leaf and answers: it decides for all hosts."""
        return self.state == ENLISTED

    def due(self) -> float:
        """When `on_time` wants to be called next."""
        if self.state == ENLISTED:
            return min(self._beat_at, self._flush_at) if self._outbox else self._beat_at
        return min(self._ask_at, self._seek_at)

    def hub_link(self) -> HubLink:
        """The state of the connection, for `HostState`."""
        address = (self._place or "").removeprefix("tcp://") or None
        dropped = self._dropped + self._outbox.dropped
        if self.connected:
            return HubLink(LEAF, address, True, None, None, dropped)
        return HubLink(LEAF, address, False, self._why(), self._lost_unix_ns, dropped)

    def clock(self) -> HostClock | None:
        """This host's clock against the hub's; kept while the hub is lost, with its age."""
        return self._clock.measured(time.monotonic_ns())

    def _why(self) -> str:
        if self._answers:
            return next(iter(self._answers.values()))
        if self._seeker.hangs():
            return "looking up the hub's address takes too long"
        if self._found.text:
            return f"nobody with this job's key answers at {self._found.text}"
        if self._found.problem:
            return f"the hub's address is not known ({self._found.problem})"
        if not self._where.hosts and self._where.wanted is None:
            return "nothing says where rank 0 is: set DDTOP_HUB=HOST:PORT on all hosts"
        return "looking for the hub"

    # -- what is due

    def on_time(self, now: float, living: int, over: bool) -> None:
        """Look for the hub, ask it to accept this leaf, send beats and queued frames, when due.

        `living`: how many ranks of this host live. `over`: nothing more will come from them.
        """
        if self.state == ENLISTED:
            if now - self._heard > LOST_S:
                self._lose(now)
            else:
                self._on_enlisted(now, (str(living), "over" if over else ""))
        if self.state == ENLISTED:
            return
        if now >= self._seek_at:
            self._seek_at = now + SEEK_S
            self._seeker.begin(self._where)
        found = self._seeker.take()
        if found is not None:
            self._found = found
            places = found.places if self._place is None else (self._place, *found.places)
            self._ends.keep_only(places)
            self._asked = {place: self._asked.get(place, 0.0) for place in dict.fromkeys(places)}
            self._answers = {
                place: why for place, why in self._answers.items() if place in self._asked
            }
            if self.state == LOOKING and self._asked:
                self.state = ASKED
            self._ask_at = 0.0
        if now >= self._ask_at:
            self._ask_at = now + ASK_S
            self._ask(now)

    def _ask(self, now: float) -> None:
        question = (
            [self._seal(self._enlist())] if any(now >= due for due in self._asked.values()) else []
        )
        for place, due in self._asked.items():
            if question and now >= due and self._ends.send(place, question):
                self._asked[place] = now + AGAIN_S

    def _enlist(self) -> Command:
        return Command(
            "enlist",
            instance=self.instance,
            arguments=(VERSION, self.hub_run or "", *self._greeting),
        )

    def _on_enlisted(self, now: float, now_role: tuple[str, ...]) -> None:
        if now_role != self._role:
            self._role, self._beat_at = now_role, now
        if now >= self._beat_at:
            self._beat_at = now + (BEAT_S if self._beats >= BEATS_FIRST else BEAT_FIRST_S)
            self._beats += 1
            beat = Command(
                "beat", instance=self.instance, arguments=(str(time.time_ns()), *now_role)
            )
            self._send([self._seal(beat)])
        if self._outbox and now >= self._flush_at:
            world = self._where.world_size or 0
            self._flush_at = now + (
                FLUSH_MOST_S
                if world > MOST_RANKS
                else FLUSH_MANY_S
                if world > MANY_RANKS
                else FLUSH_S
            )
            self._outbox.send(self._send, MESSAGES_AT_ONCE)

    def _send(self, parts: list[bytes]) -> bool:
        return self._place is not None and self._ends.send(self._place, parts)

    def _lose(self, now: float) -> None:
        self.state, self._lost_unix_ns = LOST, time.time_ns()
        self._outbox.clear()
        self._asked = {self._place: 0.0} if self._place is not None else {}
        self._answers = {}
        if self._place is not None:
            # TCP would need minutes to find that the other end of this connection is gone.
            self._ends.keep_only(())
            self._ends.keep_only((self._place,))
        self._seek_at = self._ask_at = now

    # -- what comes in

    def on_frame(self, place: str, data: bytes, now: float) -> None:
        """Take in a frame from this place.

        Raises:
            WireError: the data is not a valid frame.
        """
        came = time.time_ns()
        record = frames.open_record(frames.open_envelope(data))
        if isinstance(record, Reply):
            self._on_reply(place, record, now, came)
        elif isinstance(record, Command) and self.state == ENLISTED and place == self._place:
            answer = self._obey(record)
            if answer is not None:
                self._send([self._seal(answer)])

    def _on_reply(self, place: str, reply: Reply, now: float, came: int) -> None:
        if reply.name == "enlist":
            self._on_answer(place, reply, now)
            return
        if self.state != ENLISTED or place != self._place:
            return
        if reply.name == "unlisted" or reply.instance != self._hub_instance:
            # This is another hub at the same place, which does not know this leaf.
            self._ask_again(now)
            return
        self._heard = now
        if reply.name == UNSTUCK:
            self._pace.on_unstuck(now)
        elif reply.name == "beat":
            times = reply.text.split(",")
            if len(times) == 3 and all(
                text.isascii() and text.isdigit() and len(text) < 20 for text in times
            ):
                sent, had, answered = (int(text) for text in times)
                self._clock.add(sent, had, answered, came, time.monotonic_ns())

    def _ask_again(self, now: float) -> None:
        assert self._place is not None
        self.state, self._lost_unix_ns = LOST, self._lost_unix_ns or time.time_ns()
        self._outbox.clear()
        self._asked, self._answers = {self._place: 0.0}, {}
        self._ask_at, self._seek_at = now, now + LOST_S
        self._ask(now)

    def _on_answer(self, place: str, reply: Reply, now: float) -> None:
        if self.state == ENLISTED:
            return
        if not reply.ok or (self.hub_run is not None and reply.text != self.hub_run):
            self._answers[place] = (
                reply.text if not reply.ok else "another run of this job is there"
            )[:200]
            return
        if reply.instance != self._hub_instance:
            self._clock.forget()
        self.state, self.hub_run, self._hub_instance = ENLISTED, reply.text[:200], reply.instance
        self._place, self._heard, self._lost_unix_ns = place, now, None
        self._answers = {}
        self._ends.keep_only((place,))
        self._beats, self._beat_at, self._flush_at = 0, now, now
        self._pace.forget()
        self._outbox.begin(self._everything())

    def close(self, living: int) -> None:
        """Send what waits. If no rank lives, also report that nothing more will come."""
        if self.state == ENLISTED:
            self._outbox.send(self._send, MESSAGES_AT_ONCE)
            beat = Command(
                "beat",
                instance=self.instance,
                arguments=(str(time.time_ns()), str(living), "" if living else "over"),
            )
            self._send([self._seal(beat)])
        self._ends.close(LAST_WORDS_MS)
