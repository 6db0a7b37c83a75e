"""The base classes of probes: each probe is one source, in one file, with one row in
`ddtop.agent.sources`.

A probe runs on the agent's thread. `sample` is called at every tick, one to four times a second,
and `fields` at every report, once or twice a second. If a probe raises, the guard switches it off
by its name; its last values stay in the record.

`ddtop.agent.report` itself reads what every report needs: the identity of the rank
(`ddtop.agent.rank`), the open calls on the state page, the uncaught exception, full garbage
collections and the agent's own numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from heapq import nlargest
from typing import TYPE_CHECKING

from ddtop.wire.records import Group, RankState, Turn

if TYPE_CHECKING:
    from ddtop.agent.limits import AgentLimits
    from ddtop.agent.stacks.frames import ThreadLook

Fields = partial[RankState]
"""Some fields of the report of a rank, by their names."""
LastEntry = tuple[str, int, int, str, "int | None"]
"""(group, sequence number, unix ns, op, input bytes where known) of a collective."""
WAITS_KEPT = 100
TICK_NS = 250_000_000
"""The caches are cold at each tick, so it costs 0.3 ms of CPU, most of it to fetch some 3,700 lines
from memory. Ten seconds still have 40 samples. In a steady rank up to four times as long, see
`Reporter`."""

PageCall = tuple[int, int, int, int, int]
"""An open call on the state page: call, since (monotonic ns), peer, tag, thread."""


class Tick:
    """The results of one tick so far. Each probe may use the results of the rows above it.

    `now`: monotonic ns. `unix_minus_mono`: add it to `now` to get Unix time. `held`: the tick is
    late. `open_calls`: those on the state page. `calls`: the MPI call that each thread is in, by
    Python's number of the thread: its name and `p2p` or `collective`. `pattern`: iterations counted
    from MPI's collectives and when the count last grew. `seen`: where the rank's thread is,
    `line_since` since when, and `call_since` since when in this call of this function. `has_peer`:
    some thread is in a call that has one peer. `waits`: torch has a collective pending; `stuck`:
    for more than a second. `moved_at`: when any source had seen progress before this tick,
    monotonic ns, 0 if none had. `gpu`: the rank's own CUDA device, None while it is not known;
    `groups`: the process groups of the report that is being made; `activities`: how many samples
    have found each of ACTIVITIES; `steady_since`: since when the steps have taken equally long, 0
    if they do not; `late_after_ns`: how long after a step the next one is late, 0 while no length
    is known.
    """

    __slots__ = (
        "activities",
        "call_since",
        "calls",
        "gpu",
        "groups",
        "has_peer",
        "held",
        "late_after_ns",
        "line_since",
        "moved_at",
        "now",
        "open_calls",
        "pattern",
        "seen",
        "steady_since",
        "stuck",
        "unix_minus_mono",
        "waits",
    )

    def __init__(self) -> None:
        self.now = self.unix_minus_mono = self.moved_at = 0
        self.line_since = self.call_since = 0
        self.steady_since, self.late_after_ns, self.held = 0, 0, False
        self.seen: ThreadLook | None = None
        self.gpu: int | None = None
        self.groups: tuple[Group, ...] = ()
        self.activities: Sequence[int] = ()
        self.begin(0, 0, [])

    def begin(self, now: int, unix_minus_mono: int, open_calls: list[PageCall]) -> None:
        """Begin a new tick: clear the results of the last one."""
        self.now, self.unix_minus_mono, self.open_calls = now, unix_minus_mono, open_calls
        self.calls: dict[int, tuple[str, str]] = {}
        self.pattern: tuple[int, int] | None = None
        self.has_peer = self.waits = self.stuck = False


class Probe:
    """One source. A subclass overrides what it needs.

    `name`: the guard switches it off under this name, and the record says so. `retries`: try it
    again some time after it raised. Set it only if a new attempt starts from scratch. `moved_at`:
    when this source last saw the program progress, monotonic ns.
    """

    name = ""
    retries = True
    moved_at: int | None = None

    def sample(self, tick: Tick) -> None:
        """Take one sample. It must be cheap, and must not block or import modules of the
        program."""

    def fields(self, tick: Tick) -> Fields:
        """Fields of `RankState` that come from this source alone."""
        return partial(RankState)

    def close(self, tick: Tick) -> None:
        """The rank exits normally: take a last sample and release resources."""


class WaitsProbe(Probe):
    """A source that knows when the rank waits for other ranks. The report adds up all such sources.

    `groups`: what this rank communicates in, `turns`: asks for those of its calls there.
    `wait_samples` of `all_samples` found a wait.
    """

    def __init__(self, limits: AgentLimits) -> None:
        self._limits = limits
        self.groups: tuple[Group, ...] = ()
        self.turns: Callable[[], tuple[Turn, ...]] = tuple
        self.wait_samples = self.all_samples = 0
        self._waits: deque[int] = deque(maxlen=WAITS_KEPT)
        self._recent: deque[bool] = deque(maxlen=limits.wait_samples)
        self._recent_waits = 0

    def count_sample(self, waits: bool, host_waits: bool | None = None) -> None:
        """One more sample; `waits`: it found the rank waiting.

        `host_waits`: the CPU side waits too, so the times at which ranks enter collectives explain
        the wait. None: as `waits`.
        """
        self.all_samples += 1
        self.wait_samples += waits
        blocked = waits if host_waits is None else host_waits
        if len(self._recent) == self._limits.wait_samples:
            self._recent_waits -= self._recent[0]
        self._recent.append(blocked)
        self._recent_waits += blocked

    def note_wait(self, length_ns: int) -> None:
        """A wait has ended."""
        if length_ns > self._limits.wait_kept_ns:
            self._waits.append(length_ns)

    def forget_samples(self) -> None:
        """Forget the samples: the groups were created again."""
        self._recent.clear()
        self._recent_waits = 0

    @property
    def wait_ratio(self) -> float | None:
        """Ratio of the last samples in which the CPU side waited; None while there are too few."""
        samples = len(self._recent)
        return self._recent_waits / samples if samples >= self._limits.wait_samples_least else None

    def longest_waits_ns(self) -> list[int]:
        """The two longest of the last waits that ended, longest first."""
        return nlargest(2, self._waits) if self._waits else []

    def stuck_key(self) -> tuple[object, ...] | None:
        """What has been open for more than a second; equal keys let the relay ask for stacks."""
        return None

    def last_entries(self, unix_minus_mono: int) -> list[LastEntry]:
        """The last collectives that the rank entered."""
        return []
