"""Whether the last steps of the rank take several times as long as its usual ones.

Source: the counts that `probes.pace` gets, in pieces of two seconds. That one compares minutes,
and sees losses of a tenth. This sees large ones within half a minute, also while each step compiles
anew. Caveat: a rank whose speed has come back once is not watched any more, since its steps are
simply of two kinds. Check: the program's own samples a second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from ddtop.agent.limits import AgentLimits
from ddtop.agent.probes.pace import Counts, sum_of
from ddtop.agent.stacks.frames import COLLECTIVE
from ddtop.wire.records import Fall, Speed


class Falls:
    """Keeps the usual pieces, and the slow ones that followed them."""

    def __init__(self, limits: AgentLimits) -> None:
        self._limits = limits
        self._since: Counts | None = None
        self._source = 0
        self._forget()

    def _forget(self) -> None:
        self._fastest: list[float] = []
        self._usual: deque[Counts] = deque(maxlen=self._limits.fall_usual_pieces)
        self._slow: list[Counts] = []
        self._fell: tuple[int, int] | None = None
        self._was_large = self._varies = False

    def add(self, now: Counts, source: int, trains: bool) -> None:
        """Add the counts of now. `trains`: the time since the last call had no validation and no
        checkpoint. `source`: what counts the steps; another one starts anew."""
        since = self._since
        if since is None or source != self._source or now.steps < since.steps:
            self._since, self._source = now, source
            self._forget()
            return
        if not trains:
            self._since = now
            return
        limits, more = self._limits, now.since(since)
        long = more.at >= limits.fall_long_ns and more.steps >= limits.fall_long_steps
        if long or (more.at >= limits.fall_piece_ns and more.steps >= limits.fall_piece_steps):
            self._since = now
            self._close(since, more)

    def _close(self, began: Counts, piece: Counts) -> None:
        # One piece alone may be fast by chance.
        self._fastest = sorted([*self._fastest, piece.step_ns])[:2]
        if not self._is_slow(piece):
            self._varies |= self._was_large
            self._usual.append(piece)
            self._slow.clear()
            return
        if not self._slow:
            self._fell = (began.steps, began.at)
        self._slow.append(piece)
        while len(self._slow) > 2 and sum_of(self._slow[1:]).at >= self._limits.fall_ns:
            self._slow.pop(0)

    def _is_slow(self, piece: Counts) -> bool:
        return piece.step_ns >= self._limits.fall_slow_factor * self._fastest[-1]

    def told(self, unix_minus_mono: int) -> Fall | None:
        """What is known; None while the steps take no longer than usual."""
        limits, slow = self._limits, self._slow
        # One pause, long as it may be, is one piece.
        if self._fell is None or len(slow) < 2:
            return None
        usual = [piece for piece in self._usual if not self._is_slow(piece)]
        if not usual:
            return None
        now, then = sum_of(slow), sum_of(usual)
        if min(each.step_ns for each in slow) < limits.fall_factor * then.step_ns:
            return None
        if _work(then) and _work(now) * limits.fall_factor > _work(then):
            return None  # The steps are larger, and as much work is done.
        self._was_large = True
        if self._varies or now.at < limits.fall_ns:
            return None
        step, at = self._fell
        return Fall(_speed(now, slow), _speed(then, usual), step, at + unix_minus_mono)


def _work(counts: Counts) -> float:
    """Tokens or samples per ns; 0 where none are counted."""
    return (counts.tokens or counts.samples or 0.0) / counts.at


def _speed(whole: Counts, pieces: Iterable[Counts]) -> Speed:
    rates = [1e9 / piece.step_ns for piece in pieces]
    step_ms, parts_ms = whole.step_ns / 1e6, whole.parts_ms
    return Speed(
        "steps",
        1000 / step_ms,
        min(rates),
        max(rates),
        step_ms,
        whole.loader_ns / whole.steps / 1e6,
        parts_ms[COLLECTIVE] / step_ms if parts_ms else 0.0,
        parts_ms,
    )
