"""The exact times at which this rank entered its last collectives, on request of the relay.

Source: one read of the flight recorder's entries, and MPI's ring of calls. Measured with 2,000
entries (torch's default, about 1 MB of JSON): 20 ms of CPU of the agent's thread without the GIL,
1.2 ms with it. Caveat: without the recorder torch's collectives have no times. The relay asks at
most once a minute in the long run, and only while some ranks wait more than others. Check:
`torch.distributed._dump_fr_trace` in the program.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from ddtop.agent.probe import Communication
from ddtop.wire.calls import ROOTED as ROOTED_CALLS
from ddtop.wire.records import Arrivals
from ddtop.wire.samples import REDUCING, ROOTED, SYMMETRIC, arrivals_of

_KINDS = dict.fromkeys(("broadcast", "scatter", "gather", "reduce"), ROOTED) | {
    "all_reduce": REDUCING,
    # A barrier carries no data, so a step with many of them becomes faster without them.
    "barrier": REDUCING,
}


def take(sources: Iterable[Communication], request: str, iteration: int | None) -> Arrivals:
    """The times of the last collectives in each group that the sources know.

    `request`: the relay's name of this question. `iteration`: how many the rank has finished.
    """
    entered: dict[str, dict[int, tuple[int, int]]] = {}
    unix_minus_mono = time.time_ns() - time.monotonic_ns()
    for source in sources:
        for group, seq, created_unix_ns, op in source.entered(unix_minus_mono):
            kind = ROOTED if op in ROOTED_CALLS else _KINDS.get(op, SYMMETRIC)
            entered.setdefault(group, {})[seq] = (created_unix_ns, kind)
    found = (arrivals_of(group, times) for group, times in entered.items())
    return Arrivals(request, tuple(one for one in found if one is not None), iteration)
