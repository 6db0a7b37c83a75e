"""What a relay remembers: the latest frame of each kind and rank, and as much history as fits a byte budget."""

from __future__ import annotations

from collections import deque

from ddtop.wire.frames import Envelope

HISTORY_BYTES = 12 << 20
"""About 25 minutes of 8 ranks; with Python's own share it keeps the relay below 60 MiB."""
LATEST_MAX = 4096
"""Latest frames kept: a flood of invented ranks must not grow the relay."""
FACTS = ("Hello", "Groups", "Exit", "Stacks")

_Key = tuple[str, str, int | None, int | None]


class Keeper:
    """Frames in order of arrival. Exits and Hellos are kept besides the history: they are facts for the whole run."""

    def __init__(self, history_bytes: int = HISTORY_BYTES) -> None:
        self._latest: dict[_Key, tuple[int, bytes]] = {}
        self._history: deque[tuple[int, int, bytes, _Key]] = deque()
        self._bytes = 0
        self._budget = history_bytes
        self._order = 0
        self.forgotten = 0

    def keep(self, envelope: Envelope, frame: bytes, latest: bool = True) -> None:
        """Remember a frame; one that is not `latest` replaces none and is only kept as history."""
        key = (envelope.kind, envelope.sender, envelope.rank, envelope.pid)
        self._order += 1
        if not latest:
            pass
        elif key in self._latest or len(self._latest) < LATEST_MAX:
            self._latest[key] = (self._order, frame)
        else:
            self.forgotten += 1
        self._history.append((self._order, envelope.unix_ns, frame, key))
        self._bytes += len(frame)
        while self._bytes > self._budget:
            self._bytes -= len(self._history.popleft()[2])

    def facts(self) -> list[bytes]:
        """The latest frames that give all others their meaning, in order of arrival; may be called by another thread."""
        latest = [item for key, item in self._latest.copy().items() if key[0] in FACTS]
        return [frame for _, frame in sorted(latest, key=lambda item: item[0])]

    def since(self, unix_ns: int) -> list[bytes]:
        """History from that time on, behind the latest frames that are older, all in order of arrival."""
        recent = [(order, frame) for order, at, frame, _ in self._history if at >= unix_ns]
        inside = {order for order, _ in recent}
        older = [(order, frame) for order, frame in self._latest.values() if order not in inside]
        return [frame for _, frame in sorted(older + recent, key=lambda item: item[0])]
