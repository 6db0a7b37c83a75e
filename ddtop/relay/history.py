"""The memory of a relay: the latest frame of each kind and rank, and a history of bounded size."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from ddtop.journal import Journal
from ddtop.wire.frames import FRAME_BYTES_MAX, Envelope

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
RECORDING_SLOW_S = 20.0
"""A disk that takes longer to write one second's records is reported."""


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

    def frames_since(self, unix_ns: int, own: bool = False) -> list[bytes]:
        """The history from that time on, after the older ones of the latest frames, all in order of
        arrival. `own`: only those of this host. With the latest frames first, the model would have
        to tell old from new in every field.
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


# -- The recording of a relay
#
# A separate thread writes it, because the state folder may be on a file server. Only that thread
# waits for the disk. Frames that it cannot write yet wait in a bounded queue. When the queue is
# full, the oldest frame is dropped and counted: users want to see the last minutes.


DEFAULT_MIB = 64
"""Enough for about three hours of 8 ranks."""
QUEUE_BYTES, QUEUE_FRAMES = 4 << 20, 16384
"""Enough for six minutes of 8 ranks while a file server does not answer."""
FLUSH_S = 1.0
SYNC_S = 15.0
"""Seconds of the recording that a crash of the whole node may lose. The end of a process, also of
the relay, loses nothing that was written."""
RETRY_S = 10.0


def budget(environment: Mapping[str, str] = os.environ) -> tuple[int, str | None]:
    """($DDTOP_JOURNAL_MIB in bytes, what is wrong with it); 0 switches the recording off."""
    text = environment.get("DDTOP_JOURNAL_MIB", "").strip()
    if not text:
        return DEFAULT_MIB << 20, None
    if text.isascii() and text.isdigit() and len(text) <= 7:
        return int(text) << 20, None
    return (
        DEFAULT_MIB << 20,
        f"DDTOP_JOURNAL_MIB={text[:40]!r} is not a number of MiB; {DEFAULT_MIB} is used",
    )


class JournalWriter:
    """Writes what it is given to a journal of at most `budget_bytes`.

    `carried` gives the frames that a reader needs to understand the rest (the latest Hello, Groups,
    Exit and Stacks); it is called on the writer's thread. `put` and the properties may be used on
    any other.
    """

    def __init__(
        self,
        path: Path,
        budget_bytes: int,
        carried: Callable[[], Iterable[bytes]],
    ) -> None:
        self._journal = Journal(path, budget_bytes, carried)
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._closing = False
        self._gap = False
        self._dropped = 0
        self._problem: str | None = None
        self._written = False
        self._synced = time.monotonic()
        self._flushing_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="ddtop-blackbox", daemon=True)
        if budget_bytes <= 0:
            self._closing = True
            return
        try:
            self._thread.start()
        except RuntimeError as error:
            self._closing, self._problem = True, f"no journal is written: {error}"

    @property
    def dropped(self) -> int:
        """Frames that were lost because the disk did not take them in time."""
        return self._dropped

    @property
    def problem(self) -> str | None:
        """Why nothing is written now; None while all is well."""
        since = self._flushing_since
        if since is not None and (waits_s := time.monotonic() - since) > RECORDING_SLOW_S:
            why = f"has not taken anything for {waits_s:.0f} s (a file server that hangs?)"
            return f"{self._journal.path} {why}"
        return self._problem

    def put(self, frame: bytes) -> None:
        """Queue a frame; returns at once."""
        if self._closing:
            return
        with self._lock:
            self._queue.append(frame)
            self._queued_bytes += len(frame)
            while self._queued_bytes > QUEUE_BYTES or len(self._queue) > QUEUE_FRAMES:
                self._queued_bytes -= len(self._queue.popleft())
                self._dropped += 1
                self._gap = True
        if self._queued_bytes > QUEUE_BYTES // 2 and self._problem is None:
            self._wanted.set()

    def close(self, timeout_s: float = 2.0) -> bool:
        """Write what waits, and stop.

        False if the disk did not take it in that time; then the thread is left running.
        """
        self._closing = True
        self._wanted.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # -- on the writer's thread

    def _run(self) -> None:
        closing = False
        while not closing:
            # The thread looks once a second by itself, so that `put` need not wake it.
            self._wanted.wait(RETRY_S if self._problem else FLUSH_S)
            self._wanted.clear()
            # Read before the flush: what was put while the disk was busy needs another turn.
            closing = self._closing
            self._flushing_since = time.monotonic()
            try:
                self._flush()
            except Exception as error:  # noqa: BLE001 - the relay goes on without a journal
                self._problem = (
                    f"cannot write {self._journal.path}: {type(error).__name__}: {error}"
                )
            self._flushing_since = None
        self._journal.close()

    def _flush(self) -> None:
        gap, self._gap = self._gap, False
        batch: list[bytes] = []
        try:
            if gap:
                self._journal.renew()
            while batch := self._take():
                self._journal.append(batch)
                self._written, self._problem = True, None
            if self._written and (self._closing or time.monotonic() - self._synced >= SYNC_S):
                self._synced, self._written = time.monotonic(), False
                self._journal.sync()
        except OSError as error:
            self._gap = self._gap or gap
            self._give_back(batch)
            self._problem = f"cannot write {self._journal.path}: {error.strerror or error}"
            self._journal.close()

    def _take(self) -> list[bytes]:
        """The next frames in order, as many as one append may have."""
        batch: list[bytes] = []
        room = self._journal.batch_bytes_max
        with self._lock:
            while self._queue and (not batch or len(self._queue[0]) <= room):
                frame = self._queue.popleft()
                self._queued_bytes -= len(frame)
                room -= len(frame)
                if 0 < len(frame) <= FRAME_BYTES_MAX:
                    batch.append(frame)
                else:
                    self._dropped += 1
        return batch

    def _give_back(self, batch: list[bytes]) -> None:
        with self._lock:
            self._queue.extendleft(reversed(batch))
            self._queued_bytes += sum(len(frame) for frame in batch)
