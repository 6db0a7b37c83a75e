"""What one card has done lately: who computes is told from who waits by what it draws, over seconds, never by one look.

A kernel of NCCL that waits spins: the card is busy all the time and draws a third of what it draws while it computes.
"""

from __future__ import annotations

import copy
from typing import NamedTuple, Union

from ddtop.policy import Policy
from ddtop.wire.gpu import Gpu, GpuProcess
from ddtop.wire.records import RankState

SPANS = 4
"""Spans kept of a card: what all of them show lasts."""


class Done(NamedTuple):
    """How far the rank of a card is. `steps`: its iteration; None where nothing counts, or several ranks are on the card. `calls`:
    collectives put in; `refused`: allocations of torch that did not fit at once. Both of all its ranks."""

    steps: int | None = None
    calls: int = 0
    refused: int = 0


States = tuple[Union[RankState, None], ...]
"""What the ranks on one card have said last, None of who has said nothing yet."""


def done(states: States) -> Done:
    """How far the ranks of one card are."""
    steps = states[0].iteration if len(states) == 1 and states[0] is not None else None
    return Done(steps, sum([one.enqueued for state in states if state for one in state.groups]), _refused(states))


def _refused(states: States) -> int:
    total = 0
    for state in states:
        cuda = state.cuda if state is not None else None
        if cuda is not None:
            total += (cuda.retries or 0) + (cuda.ooms or 0)
    return total


class Span(NamedTuple):
    """Means over one piece of `policy.gpu_mean_s`, and how far the rank was when it had ended. `number`: which piece, the same for all cards."""

    number: int
    util_ratio: float | None
    power_watts: float | None
    sm_mhz: float | None
    done: Done


class Load:
    """Takes in a card's reports, one a second; each costs the same few additions.

    `util_ratio` and `power_watts` are running means over about `policy.gpu_mean_s`, None while the card does not tell. `peak_watts`:
    the most that a span has had.
    """

    __slots__ = (
        "_at", "_count", "_first", "_known", "_mhz", "_number", "_power", "_refused", "_told", "_util", "peak_watts", "power_watts",
        "spans", "util_ratio",
    )  # fmt: skip

    def __init__(self) -> None:
        self.util_ratio: float | None = None
        self.power_watts: float | None = None
        self.peak_watts: float | None = None
        self.spans: tuple[Span, ...] = ()
        self._refused = 0
        self._first: Done | None = None
        self._at = self._number = self._count = self._known = self._told = 0
        self._util = self._power = self._mhz = 0.0

    def __copy__(self) -> Load:
        made = Load.__new__(Load)
        for name in Load.__slots__:
            setattr(made, name, getattr(self, name))
        return made

    @property
    def refused_lately(self) -> int:
        """Allocations that did not fit at once, within the spans that are kept."""
        since = self.spans[0].done if self.spans else self._first
        return max(0, self._refused - since.refused) if since is not None else 0

    def add(self, at_unix_ns: int, gpu: Gpu, states: States, policy: Policy) -> None:
        """One report with fresh numbers. `states`: what the ranks on the card have said last; none of it is kept, each is soon replaced."""
        mean_s = policy.gpu_mean_s
        number = int(at_unix_ns // (mean_s * 1e9))
        if number != self._number:
            # What was refused since the last report was refused in the new piece.
            self._close(number, done(states)._replace(refused=self._refused), policy)
        if not -mean_s < (at_unix_ns - self._at) / 1e9 < mean_s:
            self._known = 0
        self._at, self._refused = at_unix_ns, _refused(states)
        if self._first is None:
            self._first = done(states)
        self._count += 1
        util, power = gpu.util_ratio, gpu.power_watts
        if util is None:
            self.silent()
            return
        known = self._known = self._known + 1 if self._known < mean_s else self._known
        before, drawn = self.util_ratio, self.power_watts
        self.util_ratio = util if before is None or known <= 1 else before + (util - before) / known
        if power is None:
            self.power_watts = None
            return
        self.power_watts = power if drawn is None or known <= 1 else drawn + (power - drawn) / known
        self._told += 1
        self._util += util
        self._power += power
        self._mhz += gpu.sm_mhz or 0

    def silent(self) -> None:
        """The driver does not answer any more: nothing is known of now."""
        self.util_ratio = self.power_watts = None
        self._known = 0

    def _close(self, number: int, now: Done, policy: Policy) -> None:
        """The piece of time is over: keep what it was, if enough of it was told and the one before it is known."""
        least, told = policy.gpu_told_ratio * policy.gpu_mean_s, self._told
        if number != self._number + 1 or self._count < least:
            self.spans = ()
        elif told < least:
            self.spans = (*self.spans, Span(self._number, None, None, None, now))[-SPANS:]
        else:
            power = self._power / told
            span = Span(self._number, self._util / told, power, self._mhz / told or None, now)
            self.spans = (*self.spans, span)[-SPANS:]
            self.peak_watts = power if self.peak_watts is None else max(self.peak_watts, power)
        self._number, self._count, self._told = number, 0, 0
        self._util = self._power = self._mhz = 0.0


class Kept:
    """What is remembered of one card besides its load."""

    __slots__ = ("ecc", "foreign", "load", "strangers", "throttled_unix_ns")

    def __init__(self) -> None:
        self.ecc: int | None = None
        self.throttled_unix_ns: int | None = None
        self.foreign: dict[int, int] = {}
        self.strangers: tuple[GpuProcess, ...] = ()
        self.load: Load | None = None

    def __copy__(self) -> Kept:
        made = Kept()
        made.ecc, made.throttled_unix_ns, made.foreign = self.ecc, self.throttled_unix_ns, dict(self.foreign)
        made.strangers, made.load = self.strangers, copy.copy(self.load)
        return made

    def move(self, by_ns: int) -> None:
        """All times that much later: their clock was another than was thought."""
        if self.throttled_unix_ns is not None:
            self.throttled_unix_ns += by_ns
        self.foreign = {pid: at + by_ns for pid, at in self.foreign.items()}
