"""Which reports a leaf sends to its hub: in a very large world not all of them (`wire.pace`).

A report in which a rank has just become stuck, or is no longer stuck, is always sent. So the hub
knows at once which ranks wait for others. Healthy ranks are reported in turns. While nearly all
ranks are stuck, the hub asks for each report of the others (`on_unstuck`), because the cause is
among them.
"""

from __future__ import annotations

import zlib

from ddtop.wire.frames import Envelope
from ddtop.wire.pace import UNSTUCK_S, host_period_s, rank_period_s

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
