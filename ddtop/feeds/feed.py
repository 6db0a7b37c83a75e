"""A feed of records that no relay sends: of processes that are looked at from outside.

It answers as a relay does, so that `follow.live.LiveSource` follows it like any other job: what was
said last comes when somebody joins, then what is new, and requests get a reply.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Sequence

from ddtop.feeds.route import Route
from ddtop.wire import frames
from ddtop.wire.records import AnyRecord, Command, OutsideLook, Reply
from ddtop.words.sentences import rank_ranges

NO_DUMP_SIGNAL = "its ranks were started without DDTOP=1: they have no dump signal"
NO_MUTES = "mutes are kept by a relay, and this job has none: it was started without DDTOP=1"
TURN_S = 0.05
_Key = tuple[str, str, "int | None", "int | None"]


class LocalFeed(Route):
    """A route and a link in one, for one event loop. Its owner calls `end` when it is done."""

    def __init__(self, job: str, sender: str) -> None:
        super().__init__(job)
        self._sender = sender
        self._latest: dict[_Key, bytes] = {}
        self._waiting: deque[bytes] = deque()
        self._looking: asyncio.Task[None] | None = None

    @property
    def asks(self) -> bool:
        """Whether NCCL's status service is to be asked and has not answered yet."""
        return False

    @property
    def over(self) -> bool:
        """Nothing more comes, for now."""
        looking = self._looking
        if looking is None or not looking.done():
            return False
        if not looking.cancelled():
            # asyncio would print an exception that nobody has asked for.
            looking.exception()
        return True

    @abstractmethod
    def judged(self, looks: Sequence[OutsideLook | None]) -> bool:
        """Whether each rank that can be read was read twice, at least a second apart.

        `looks`: the last ones at the ranks that live, as far as their follower has them.
        """

    @abstractmethod
    async def run(self) -> None:
        """Look until cancelled."""

    @abstractmethod
    def stacks(self, request: str, ranks: frozenset[int], how: str) -> Reply:
        """Take the stacks of these ranks, empty: all. Returns how many answers come, or why none
        does."""

    @abstractmethod
    def signal(self, rank: int, number: int) -> Reply:
        """Send a signal to a rank."""

    @abstractmethod
    def end(self) -> None:
        """Release the processes, or the programs on other hosts."""

    # -- a route

    async def connect(self, controller: bool) -> LocalFeed:  # noqa: ARG002 - the protocol has it
        """Begin to look, unless it looks already."""
        if self._looking is None or self.over:
            self._looking = asyncio.create_task(self.run())
        return self

    # -- a link

    async def receive(self, seconds: float) -> AsyncIterator[bytes]:
        """The frames of the next `seconds`."""
        until = time.monotonic() + seconds
        while True:
            while self._waiting:
                yield self._waiting.popleft()
            if self._looking is not None and self.over:
                self._looking.result()
            left_s = until - time.monotonic()
            if left_s <= 0:
                return
            await asyncio.sleep(min(left_s, TURN_S))

    async def send(self, frame: bytes) -> None:
        """Take a command and queue its reply."""
        command = frames.open_record(frames.open_envelope(frame))
        assert isinstance(command, Command)
        if command.name == "join":
            self._waiting = deque(self._latest.values())
            self._reply(Reply("live"))
        elif command.name == "stacks":
            request, ranks, how = command.arguments
            wanted = frozenset(one for part in rank_ranges(ranks) or () for one in part)
            self._reply(self.stacks(request, wanted, how))
        elif command.name == "signal":
            rank, _, number = map(int, command.arguments)
            self._reply(self.signal(rank, number))
        elif command.name == "mute":
            self._reply(Reply("mute", ok=False, text=NO_MUTES))

    def close(self) -> None:
        """Keep looking: it may be joined again."""

    # -- what it says

    def say(
        self,
        record: AnyRecord,
        rank: int | None = None,
        pid: int | None = None,
        at_unix_ns: int | None = None,
    ) -> None:
        """Queue this record. `at_unix_ns`: when it was true; None: now."""
        now_unix_ns = time.time_ns()
        at_unix_ns = at_unix_ns or now_unix_ns
        data = frames.seal(
            record,
            sender=self._sender,
            unix_ns=at_unix_ns,
            mono_ns=time.monotonic_ns() - (now_unix_ns - at_unix_ns),
            rank=rank,
            pid=pid,
        )
        self.keep((type(record).__name__, self._sender, rank, pid), data)

    def keep(self, key: _Key, data: bytes) -> None:
        """Queue this frame. A later join gets it too, unless a newer frame has the same key."""
        self._latest[key] = data
        self._waiting.append(data)

    def heard(self) -> list[bytes]:
        """Take the queued frames, without following the feed."""
        found, self._waiting = list(self._waiting), deque()
        return found

    def _reply(self, reply: Reply) -> None:
        now_unix_ns, now_mono_ns = time.time_ns(), time.monotonic_ns()
        self._waiting.append(
            frames.seal(reply, sender=self._sender, unix_ns=now_unix_ns, mono_ns=now_mono_ns)
        )
