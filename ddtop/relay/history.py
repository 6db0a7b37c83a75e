"""The memory of a relay: the latest frame of each kind and rank, and a history of bounded size."""

from __future__ import annotations

from collections import deque

from ddtop.wire.frames import Envelope

HISTORY_BYTES = 12 << 20
"""About 25 minutes of 8 ranks, and two seconds of 10,000, for which a late viewer gets little more
than the latest frames. Together with Python's own memory the relay stays below 60 MiB."""
LATEST_MAX, LATEST_HUB_MAX = 4096, 5 << 17
"""The maximum number of latest frames, so that invented ranks cannot fill the memory. A hub keeps
those of 131,072 ranks."""
FACTS = ("Hello", "Groups", "Exit", "Stacks")
LATEST_BYTES = 1 << 30
"""The maximum size of the latest frames. The real frames of 131,072 ranks take about 600 MiB."""

_Key = tuple[str, str, "int | None", "int | None"]


class FrameHistory:
    """Frames in order of arrival.

    Exits and Hellos are kept separately from the history, because they are needed for the whole
    run.

    `latest_max`: latest frames that are kept.
    """

    def __init__(self, history_bytes: int = HISTORY_BYTES) -> None:
        self._latest: dict[_Key, tuple[int, bytes, bool]] = {}
        self._history: deque[tuple[int, int, bytes, bool]] = deque()
        self._bytes = self._latest_bytes = 0
        self._budget = history_bytes
        self._order = 0
        self.latest_max = LATEST_MAX
        self.forgotten = 0

    def keep(
        self,
        envelope: Envelope,
        frame: bytes,
        latest: bool = True,
        own: bool = True,
        past: bool = True,
    ) -> None:
        """Remember a frame.

        `latest` False: it replaces no latest frame and is only kept as history. `own`: it comes
        from this host. `past` False: it is not kept as history, so that it pushes nothing out.
        """
        self._order += 1
        if latest:
            key = (envelope.kind, envelope.sender, envelope.rank, envelope.pid)
            before = self._latest.get(key)
            room = len(self._latest) < self.latest_max and self._latest_bytes < LATEST_BYTES
            if before is not None or room:
                self._latest[key] = (self._order, frame, own)
                self._latest_bytes += len(frame) - (len(before[1]) if before is not None else 0)
            else:
                self.forgotten += 1
        if not past:
            return
        self._history.append((self._order, envelope.unix_ns, frame, own))
        self._bytes += len(frame)
        while self._bytes > self._budget:
            self._bytes -= len(self._history.popleft()[2])

    def has(self, envelope: Envelope, frame: bytes) -> bool:
        """Whether this very frame is the latest of its kind and rank."""
        found = self._latest.get((envelope.kind, envelope.sender, envelope.rank, envelope.pid))
        return found is not None and found[1] == frame

    def facts(self) -> list[bytes]:
        """The latest frames that are needed to understand all others, in order of arrival.

        May be called by another thread.
        """
        latest = [item for key, item in self._latest.copy().items() if key[0] in FACTS]
        return [frame for _, frame, _ in sorted(latest, key=lambda item: item[0])]

    def since(self, unix_ns: int, own: bool = False) -> list[bytes]:
        """The history from that time on, after the older ones of the latest frames, all in order of
        arrival. `own`: only those of this host.
        """
        recent = [
            (order, frame)
            for order, at, frame, ours in self._history
            if at >= unix_ns and (ours or not own)
        ]
        inside = {order for order, _ in recent}
        older = [
            (order, frame)
            for order, frame, ours in self._latest.values()
            if order not in inside and (ours or not own)
        ]
        return [frame for _, frame in sorted(older + recent, key=lambda item: item[0])]
