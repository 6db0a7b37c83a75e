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
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from ddtop.relay.hub.topology import HubPlaces, HubSearch, Topology
from ddtop.wire import frames
from ddtop.wire.frames import Envelope
from ddtop.wire.records import LEAF, AnyRecord, Command, HostClock, HubLink, Reply
from ddtop.wire.times import UNSTUCK, UNSTUCK_S, host_period_s, rank_period_s

# -- What a leaf has to send to its hub: facts first, then the newest frames in order
#
# The outbox is bounded. When the hub takes nothing, a new state of a rank replaces the one before,
# and what does not fit is dropped, oldest first, and counted. A fact that was dropped is sent again
# later, because the hub has no other source for it.


BYTES_MAX = 8 << 20
BATCH_FRAMES, BATCH_BYTES = 128, 256 << 10
"""Limits of one message, so that neither side works on one for an eighth of a second."""
STATES = ("RankState", "HostState")
URGENT = ("Exit", "Hello", "Stacks", "Reply")
"""These are sent at once and do not wait for the next batch."""


class Outbox:
    """Frames that wait to be sent.

    `facts` gives the frames that a hub needs to understand the others.
    """

    def __init__(self, facts: Callable[[], Iterable[bytes]], bytes_max: int = BYTES_MAX) -> None:
        self._facts, self._bytes_max = facts, bytes_max
        self._first: deque[bytes] = deque()
        self._waiting: dict[object, bytes] = {}
        self._bytes = self._order = 0
        self._refused = self._lost_fact = False
        self.dropped = 0

    def __bool__(self) -> bool:
        return bool(self._first or self._waiting or self._lost_fact)

    def begin(self, frames: Iterable[bytes]) -> None:
        """Send all these frames first, because a new hub knows nothing of this host."""
        self._first = deque(frames)
        self._waiting.clear()
        self._bytes = 0
        self._refused = self._lost_fact = False

    def clear(self) -> None:
        """The hub is gone: drop what waits."""
        self.dropped += len(self._waiting)
        self.begin(())

    def put(self, envelope: Envelope, frame: bytes) -> None:
        """Queue a frame."""
        key: object
        if envelope.kind in STATES:
            key = (envelope.kind, envelope.rank, envelope.pid)
            before = self._waiting.pop(key, None)
            if before is not None:
                self._bytes -= len(before)
                # Within one interval the newer state has all that the older one had. If the hub
                # has refused messages, the older one is a gap in its history.
                self.dropped += self._refused
        else:
            self._order += 1
            key = self._order
        self._waiting[key] = frame
        self._bytes += len(frame)
        while self._bytes > self._bytes_max and len(self._waiting) > 1:
            oldest = next(iter(self._waiting))
            self._bytes -= len(self._waiting.pop(oldest))
            self._lost_fact = self._lost_fact or not isinstance(oldest, tuple)
            self.dropped += 1

    def send(self, send: Callable[[list[bytes]], bool], messages: int) -> None:
        """Send what waits, in at most `messages` messages, until one is refused."""
        for _ in range(messages):
            batch, taken = self._next_message()
            if not batch:
                break
            if not send(batch):
                self._refused = True
                return
            for key in taken:
                self._bytes -= len(self._waiting.pop(key))
            for _ in range(len(batch) - len(taken)):
                self._first.popleft()
            self._refused = False

    def _next_message(self) -> tuple[list[bytes], list[object]]:
        """The frames of the next message, and the keys of those that are new."""
        if not self._first and not self._waiting and self._lost_fact:
            self._lost_fact = False
            self._first.extend(self._facts())
        batch: list[bytes] = []
        taken: list[object] = []
        room = BATCH_BYTES
        for key, frame in chain(((None, frame) for frame in self._first), self._waiting.items()):
            room -= len(frame)
            if len(batch) >= BATCH_FRAMES or (room < 0 and batch):
                break
            batch.append(frame)
            if key is not None:
                taken.append(key)
        return batch, taken


# -- Which reports a leaf sends to its hub: in a very large world not all of them (`wire.pace`)
#
# A report in which a rank has just become stuck, or is no longer stuck, is always sent. So the hub
# knows at once which ranks wait for others. Healthy ranks are reported in turns. While nearly all
# ranks are stuck, the hub asks for each report of the others (`on_unstuck`), because the cause is
# among them.


_Source = tuple["int | None", "int | None"]


class ReportPace:
    """Chooses the reports of one host that are sent. Times are monotonic seconds.

    The turns of ranks and hosts begin at different moments. All leaves connect to the hub at the
    same moment, and would otherwise all send at once.
    """

    def __init__(self) -> None:
        self._sent: dict[_Source, tuple[int, str | None]] = {}
        self._unstuck_until = float("-inf")

    def admits(self, envelope: Envelope, world_size: int, now: float) -> bool:
        """Whether this report of a rank or host is sent. A report that is not sent is replaced by
        the next one, which comes within a second."""
        of_rank = envelope.kind == "RankState"
        period_s = rank_period_s(world_size) if of_rank else host_period_s(world_size)
        if period_s <= 1.0:
            return True
        source = (envelope.rank, envelope.pid)
        shift = zlib.crc32(f"{envelope.sender}/{envelope.rank}".encode()) / 2**32
        state = (int(now / period_s + shift), envelope.stuck_key)
        wanted = envelope.stuck_key is None and now < self._unstuck_until
        if self._sent.get(source) == state and not wanted:
            return False
        self._sent[source] = state
        return True

    def on_unstuck(self, now: float) -> None:
        """The hub asks for each report of this host and of its ranks that are not stuck."""
        self._unstuck_until = now + UNSTUCK_S

    def forget(self) -> None:
        """Forget what was sent: another hub has none of it. Ranks that ended go too."""
        self._sent.clear()
        self._unstuck_until = float("-inf")


# -- The offset between the clock of a leaf and that of its hub, from the times of messages, as in
#    NTP
#
# A leaf sends a question at t1 and has the answer at t4, on its own clock. The answer says when the
# hub received the question (t2) and answered (t3). The offset is ((t2 - t1) + (t3 - t4)) / 2, and
# wrong by at most half of the round trip. So the fastest of the last answers is used. It does not
# matter if a busy relay or network delays other answers.


KEPT = 16
"""Answers, one every 2 s: in half a minute clocks drift by at most 3 ms (100 ppm), NTP's own
corrections included."""
DRIFT_RATIO = 1e-4
STEPPED_NS = 5_000_000
"""If the wall clock and the monotonic clock of one host have drifted this far apart since an
answer, somebody has set the clock."""
SANE_NS = 1 << 62


@dataclass(frozen=True, slots=True)
class _Sample:
    offset_ns: int
    error_ns: int
    mono_ns: int
    unix_minus_mono_ns: int


class HubClock:
    """The last answers of one hub.

    Times in ns; `mono_ns` is this host's monotonic clock when the answer came.
    """

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque(maxlen=KEPT)

    def add(self, sent: int, had: int, answered: int, came: int, mono_ns: int) -> None:
        """Add one answer (t1, t2, t3, t4, all unix ns).

        An impossible one is ignored.
        """
        error = ((came - sent) - (answered - had)) // 2
        if error < 0 or answered < had or max(map(abs, (sent, had, answered, came))) > SANE_NS:
            return
        new = _Sample(((had - sent) + (answered - came)) // 2, error, mono_ns, came - mono_ns)
        # Earlier answers that contradict this one are from before one of the clocks was set.
        fitting = (sample for sample in self._samples if _agree(sample, new))
        self._samples = deque(fitting, maxlen=KEPT)
        self._samples.append(new)

    def forget(self) -> None:
        """Forget all answers: there is a new hub."""
        self._samples.clear()

    def fastest(self, mono_ns: int) -> HostClock | None:
        """The result of the fastest of the last answers; None if there is none."""
        best = min(
            self._samples,
            key=lambda sample: sample.error_ns + _drift(mono_ns - sample.mono_ns),
            default=None,
        )
        return HostClock(best.offset_ns, best.error_ns) if best is not None else None


def _agree(old: _Sample, new: _Sample) -> bool:
    if abs(new.unix_minus_mono_ns - old.unix_minus_mono_ns) > STEPPED_NS:
        return False
    room = old.error_ns + new.error_ns + _drift(new.mono_ns - old.mono_ns)
    return abs(new.offset_ns - old.offset_ns) <= room


def _drift(elapsed_ns: int) -> int:
    return int(max(0, elapsed_ns) * DRIFT_RATIO)


# -- The connection of a leaf to its hub


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
ENDS, ENDS_ASKED_MAX, ADDRESS_MAX = "ends", 64, 64
"""The hub's word with the addresses at which ranks wait, how many of them, and their length."""
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

    `elsewhere`: the addresses at which ranks of this host wait for other hosts.

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
        self.elsewhere: tuple[str, ...] = ()
        self._asked_ends: tuple[float, tuple[str, ...]] = 0.0, ()
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

    def asked_ends(self, now: float) -> tuple[str, ...]:
        """The addresses at which ranks of other hosts wait, as the hub last said."""
        until, found = self._asked_ends
        return found if now < until else ()

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
            return HubLink(LEAF, address, True, None, dropped)
        return HubLink(LEAF, address, False, self._why_not_connected(), dropped)

    def clock(self) -> HostClock | None:
        """This host's clock against the hub's; kept while the hub is lost, with its age."""
        return self._clock.fastest(time.monotonic_ns())

    def _why_not_connected(self) -> str:
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
            words = (str(time.time_ns()), *now_role, *self.elsewhere)
            beat = Command("beat", instance=self.instance, arguments=words)
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
        self.state = LOST
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
            if record.name == ENDS:
                self._asked_ends = now + LOST_S, record.arguments[:ENDS_ASKED_MAX]
                return
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
        self.state = LOST
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
        self._place, self._heard = place, now
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
