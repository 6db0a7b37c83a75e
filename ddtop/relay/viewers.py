"""The viewers of this relay.

A viewer joins and gets the history, then all new frames. It may leave without a message.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ddtop.link.peer_queues import WAITING_BYTES_MAX
from ddtop.link.relay_side import VIEW, RelayLink
from ddtop.relay.history import HISTORY_BYTES, FrameHistory
from ddtop.wire import frames
from ddtop.wire.records import AnyRecord, Command, Reply

VIEWER_SILENT_S = 10.0
VIEWERS_MAX = 64
PINGLESS_S = 3.0
"""A viewer sends a ping every two seconds; one that sends none for this time has left."""
HISTORY_S_MAX = 1e9
"""Limit of the history that a viewer asks for: it may ask for any number, also infinity."""
ROOM_S = 2.0
"""How long a viewer that joins waits until so much of others' history is out that its own has room.
After that it gets the latest frames only. A view waits 5 s for them."""


class Viewers:
    """Used by the relay's loop only.

    `follow(order, role, peer)` returns the answer to an order, None if it comes later.
    """

    def __init__(
        self,
        link: RelayLink,
        history: FrameHistory,
        instance: str,
        seal: Callable[[AnyRecord], bytes],
        follow: Callable[[Command, str, bytes], Reply | None],
    ) -> None:
        self._link, self._history, self._instance, self._seal, self._follow = (
            link,
            history,
            instance,
            seal,
            follow,
        )
        self._peers: dict[bytes, float] = {}
        self._joining: dict[bytes, tuple[float, float]] = {}
        self._may_admit = True
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._peers) + len(self._joining)

    def on_frame(self, peer: bytes, envelope: frames.Envelope, role: str) -> None:
        """Take in what a viewer says.

        Raises:
            WireError: the frame is not a command.
        """
        record = frames.open_record(envelope)
        if not isinstance(record, Command):
            raise frames.WireError("a viewer says commands only")
        if record.name == "join":
            if self._link.queues.owes(peer):
                # It has joined, and reads its history. To ask for it again would add to it.
                return
            if len(self) >= VIEWERS_MAX:
                # Forget viewers that left without a message: somebody who runs a short command
                # ten times a second must not keep others out.
                self.forget_silent(time.monotonic(), PINGLESS_S)
            if len(self) >= VIEWERS_MAX:
                self.say(
                    peer,
                    Reply("joined", ok=False, text=f"{VIEWERS_MAX} viewers are attached already"),
                )
                return
            now = time.monotonic()
            self._joining.setdefault(peer, (record.history_s, now + ROOM_S))
            self._admit(now)
            return
        if record.name in ("stacks", "signal", "mute"):
            answer = self._follow(record, role, peer)
            if answer is not None:
                self.say(peer, answer)
        elif record.name != "ping":
            self.say(peer, Reply(record.name, ok=False, text=f"unknown command {record.name[:40]}"))
            return
        if peer in self._peers:
            self._peers[peer] = time.monotonic()
        elif peer not in self._joining:
            # It has not joined this relay, but the one before it.
            self.say(peer, Reply("rejoin", instance=self._instance))

    def due(self) -> float:
        """When `on_time` wants to be called next, monotonic s."""
        return time.monotonic() + ROOM_S / 40 if self._joining else float("inf")

    def on_time(self, now: float) -> None:
        """Admit the next viewer. One in each turn of the loop: to collect its history takes 20 ms
        in which no rank is served.
        """
        self._may_admit = True
        self._admit(now)

    def _admit(self, now: float) -> None:
        if not self._joining or not self._may_admit:
            return
        peer, (history_s, until_s) = next(iter(self._joining.items()))
        room = self._link.queues.waiting_bytes + HISTORY_BYTES <= WAITING_BYTES_MAX
        if not room and now < until_s:
            return
        self._may_admit = False
        del self._joining[peer]
        self._peers[peer] = now
        self._tell_history(peer, history_s if room else 0.0)

    def _tell_history(self, peer: bytes, seconds: float) -> None:
        history = self._history.since(
            time.time_ns() - int(min(max(0.0, seconds), HISTORY_S_MAX) * 1e9)
        )
        joined = Reply("joined", count=len(history), instance=self._instance)
        live = Reply("live", instance=self._instance)
        self._link.send(VIEW, peer, self._seal(joined), *history, self._seal(live))

    def say(self, peer: bytes, record: AnyRecord) -> None:
        """Answer one viewer."""
        self.dropped += not self._link.send(VIEW, peer, self._seal(record))

    def send(self, peer: bytes, data: bytes) -> None:
        """A frame for one viewer."""
        self.dropped += not self._link.send(VIEW, peer, data)

    def tell(self, *data: bytes) -> None:
        """Send frames to all."""
        full, gone = self._link.broadcast(self._peers, *data)
        self.dropped += len(full) * len(data)
        for peer in gone:
            # It has left, so nothing counts as dropped.
            del self._peers[peer]

    def forget_silent(self, now: float, seconds: float = VIEWER_SILENT_S) -> None:
        """Forget viewers that have sent nothing for this time."""
        self._peers = {peer: at for peer, at in self._peers.items() if now - at <= seconds}
