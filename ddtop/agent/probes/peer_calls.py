"""Calls of torch that have one peer: send, recv and the wait of what isend and irecv return.

Source: the open calls on the state page and the waits that `wrap.p2p` notes. Caveat: only calls
through `torch.distributed`; what C++ code sends by itself is not seen. Check:
`py-spy dump --pid PID`.
"""

from __future__ import annotations

import time
from heapq import nlargest

from ddtop.agent.notes import PeerNotes
from ddtop.agent.probe import Tick, WaitsProbe
from ddtop.agent.rank import Rank
from ddtop.wire import page as layout
from ddtop.wire.names import P2P_CALLS


class PeerCallsProbe(WaitsProbe):
    """Tells the following probes that such a call is open: its sequence number is not that of a
    collective."""

    name = "peer calls"

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank.limits)
        self._rank = rank

    def sample(self, tick: Tick) -> None:
        """Look at the open calls; a call of MPI on the rank's thread counts too."""
        tick.has_peer = self._rank.lead_id in tick.calls
        for call, *_ in tick.open_calls:
            tick.has_peer = tick.has_peer or layout.CALLS[call] in P2P_CALLS

    def longest_waits_ns(self) -> list[int]:
        """The longest of the last waits that ended."""
        waits = self._rank.notes[PeerNotes].waits
        return nlargest(2, waits) if waits else []

    def stuck_key(self) -> tuple[object, ...] | None:
        """The call that has been open for a second: name, peer, since when."""
        now = time.monotonic_ns()
        for call, since, peer, _, _ in self._rank.page.open_calls():
            if now - since > self._limits.stuck_ns and layout.CALLS[call] in P2P_CALLS:
                return layout.CALLS[call], peer, since
        return None
