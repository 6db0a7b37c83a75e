"""Limits how often ranks are asked for stacks: each rank once in two seconds.

Requests that arrive earlier wait together for the next turn. A dump costs each rank milliseconds
during which nothing else runs in its interpreter, and many kilobytes in the recording. A viewer
that asked a thousand times a second slowed a job from 72 steps a second to 10. Times are the
relay's monotonic s.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

EVERY_S = 2.0
"""Nobody reads stacks faster than this, and a dump of 20 ms every two seconds costs one percent."""
NATIVE_EVERY_S = 30.0
"""py-spy stops a process while it reads, which takes seconds for a large one."""
SHARED_S, SHARED_MAX = 60.0, 16
"""How long, and for how many dumps, the viewers that share them are remembered."""

Ranks = frozenset[int] | None
"""None: all."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of a viewer. `how`: BY_SIGNAL or empty."""

    viewer: bytes
    name: str
    ranks: Ranks
    who: str
    how: str = ""


@dataclass
class Turn:
    """One dump for all viewers that asked for the same. Its name is that of the first request."""

    due: float
    asked: dict[bytes, Asked] = field(default_factory=dict)

    @property
    def first(self) -> Asked:
        """The request that gives the dump its name."""
        return next(iter(self.asked.values()))

    @property
    def ranks(self) -> Ranks:
        """The ranks of all its requests."""
        found: set[int] = set()
        for one in self.asked.values():
            if one.ranks is None:
                return None
            found |= one.ranks
        return frozenset(found)


class Turns:
    """The times at which ranks were asked, the requests that wait for the next turn, and the
    viewers that share the last dumps.
    """

    def __init__(self) -> None:
        self._all_at = float("-inf")
        self._at: dict[int, float] = {}
        self._native_all_at = float("-inf")
        self._native_at: dict[int, float] = {}
        self._waiting: dict[str, Turn] = {}
        self._shared: dict[str, tuple[float, tuple[Asked, ...]]] = {}

    @property
    def due(self) -> float:
        """When `take` will return a turn; infinity if no request waits."""
        return min((turn.due for turn in self._waiting.values()), default=float("inf"))

    def ask(self, asked: Asked, now: float) -> None:
        """Queue a request. `take` returns it when its turn has come.

        If a viewer asks again, its new request replaces the one that waits.
        """
        due = max(now, self._last(asked.ranks) + EVERY_S)
        turn = self._waiting.setdefault(asked.how, Turn(due))
        turn.due = max(turn.due, due)
        turn.asked[asked.viewer] = asked

    def take(self, now: float) -> Turn | None:
        """The turn that is due; returned once."""
        how = next((how for how, turn in self._waiting.items() if now >= turn.due), None)
        if how is None:
            return None
        turn = self._waiting.pop(how)
        self.note(turn.ranks, now)
        others = tuple(one for one in turn.asked.values() if one is not turn.first)
        self._shared = {name: one for name, one in self._shared.items() if now - one[0] < SHARED_S}
        while len(self._shared) >= SHARED_MAX:
            del self._shared[next(iter(self._shared))]
        if others:
            self._shared[turn.first.name] = (now, others)
        return turn

    def sharers(self, name: str, rank: int | None) -> list[Asked]:
        """The other viewers that want this answer of the dump with that name."""
        _, others = self._shared.get(name, (0.0, ()))
        return [one for one in others if one.ranks is None or rank in one.ranks]

    def note(self, ranks: Collection[int] | None, now: float) -> None:
        """Note that these ranks are asked now."""
        self._at = {rank: at for rank, at in self._at.items() if now - at < EVERY_S}
        if ranks is None:
            self._all_at = now
        else:
            self._at.update(dict.fromkeys(ranks, now))

    def _last(self, ranks: Ranks) -> float:
        known = (
            self._at.values()
            if ranks is None
            else [at for rank, at in self._at.items() if rank in ranks]
        )
        return max(self._all_at, *known, float("-inf"))

    def native_wait_s(self, ranks: Ranks, now: float) -> float:
        """Seconds until these ranks may be read natively again.

        0: they may be read now, and count as read.
        """
        self._native_at = {
            rank: at for rank, at in self._native_at.items() if now - at < NATIVE_EVERY_S
        }
        known = [at for rank, at in self._native_at.items() if ranks is None or rank in ranks]
        left = max(self._native_all_at, *known, float("-inf")) + NATIVE_EVERY_S - now
        if left > 0:
            return left
        if ranks is None:
            self._native_all_at = now
        else:
            self._native_at.update(dict.fromkeys(ranks, now))
        return 0.0
