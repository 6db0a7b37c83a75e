"""`python -m tools.recorded.double JOURNAL SOCKET`: a relay that gives each viewer a recording.

It prints its port. A viewer that joins gets all but the last seconds as history, and these as
they once came.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from pathlib import Path

from ddtop import journal, registry
from ddtop.link.relay_side import VIEW, RelayLink
from ddtop.wire import frames
from ddtop.wire.records import AnyRecord, Command, Reply
from tools.recorded.record import SENDER

STEPS, STEP_S = 60, 0.1
"""The last six seconds, a tenth of a second at a time: no command looks for longer."""
TICK_S = 0.02


class Double:
    """The relay of one recording."""

    def __init__(self, journal_path: Path, socket: Path) -> None:
        self.link = RelayLink(socket, registry.secret(), "127.0.0.1")
        found = list(journal.Reader(journal_path))
        times = [frames.open_envelope(data).unix_ns for data in found]
        self._last_unix_ns = max(times)
        steps: list[list[bytes]] = [[] for _ in range(STEPS + 1)]
        for data, at in zip(found, times, strict=True):
            before_end = int((self._last_unix_ns - at) / 1e9 / STEP_S)
            steps[max(0, STEPS - before_end)].append(data)
        self._history, *self._steps = steps
        self._due: deque[tuple[float, bytes, list[bytes]]] = deque()

    def turn(self) -> None:
        """Answer what has come in, and send what is due."""
        for kind, _ in self.link.wait(TICK_S):
            for peer, data, _ in self.link.receive(kind):
                command = frames.open_record(frames.open_envelope(data))
                if kind == VIEW and isinstance(command, Command) and command.name != "ping":
                    self._answer(peer, command.name)
        while self._due and self._due[0][0] <= time.monotonic():
            _, peer, found = self._due.popleft()
            self.link.send(VIEW, peer, *found)

    def _answer(self, peer: bytes, name: str) -> None:
        if name != "join":
            self.link.send(VIEW, peer, self._sealed(Reply(name, ok=False, text="not recorded")))
            return
        joined = Reply("joined", count=len(self._history), instance="1")
        live = Reply("live", instance="1")
        self.link.send(VIEW, peer, self._sealed(joined), *self._history, self._sealed(live))
        now = time.monotonic()
        for number, found in enumerate(self._steps):
            self._due.append((now + (number + 1) * STEP_S, peer, found))

    def _sealed(self, record: AnyRecord) -> bytes:
        return frames.seal(record, sender=SENDER, unix_ns=self._last_unix_ns, mono_ns=0)


def main() -> None:
    """Serve viewers until the process is ended."""
    double = Double(Path(sys.argv[1]), Path(sys.argv[2]))
    print(double.link.port, flush=True)
    while True:
        double.turn()


if __name__ == "__main__":
    main()
