"""How often ranks may be asked for stacks: once in two seconds each.

Requests that come in between wait together for the next turn. A dump costs each rank milliseconds
during which nothing else runs in its interpreter, and many kilobytes in the recording. A viewer
that asked a thousand times a second slowed a job from 72 steps a second to 10. Times are the
relay's monotonic s.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

EVERY_S = 2.0
"""A person does not read faster, and twenty milliseconds in two seconds are one percent."""
NATIVE_EVERY_S = 30.0
"""py-spy stops a process while it reads, for seconds in a large one."""
SHARED_S, SHARED_MAX = 60.0, 16
"""For so long, and of so many dumps, it is known who shares them."""

Ranks = frozenset[int] | None
"""None: all."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of a viewer."""

    viewer: bytes
    name: str
    ranks: Ranks
    who: str


@dataclass
class Turn:
    """One dump, for everybody who asked. Its name is that of the first request."""

    due: float
    asked: dict[bytes, Asked] = field(default_factory=dict)

    @property
    def first(self) -> Asked:
        """Whose request it goes by."""
        return next(iter(self.asked.values()))

    @property
    def ranks(self) -> Ranks:
        """All ranks that somebody wants."""
        found: set[int] = set()
        for one in self.asked.values():
            if one.ranks is None:
                return None
            found |= one.ranks
        return frozenset(found)


class Turns:
    """When which ranks were asked, who waits for the next turn, and who shares the answers of the
    last ones.
    """

    def __init__(self) -> None:
        self._all_at = float("-inf")
        self._at: dict[int, float] = {}
        self._native_all_at = float("-inf")
        self._native_at: dict[int, float] = {}
        self._waiting: Turn | None = None
        self._shared: dict[str, tuple[float, tuple[Asked, ...]]] = {}

    @property
    def due(self) -> float:
        """When `take` has something; infinity when nobody waits."""
        return self._waiting.due if self._waiting is not None else float("inf")

    def ask(self, asked: Asked, now: float) -> None:
        """Put a request in. `take` gives it back when its turn has come.

        If a viewer asks again, its new request replaces the one that waits.
        """
        due = max(now, self._last(asked.ranks) + EVERY_S)
        turn = self._waiting = self._waiting or Turn(due)
        turn.due = max(turn.due, due)
        turn.asked[asked.viewer] = asked

    def take(self, now: float) -> Turn | None:
        """The turn that has come, once."""
        turn = self._waiting
        if turn is None or now < turn.due:
            return None
        self._waiting = None
        self.note(turn.ranks, now)
        others = tuple(one for one in turn.asked.values() if one is not turn.first)
        self._shared = {name: one for name, one in self._shared.items() if now - one[0] < SHARED_S}
        while len(self._shared) >= SHARED_MAX:
            del self._shared[next(iter(self._shared))]
        if others:
            self._shared[turn.first.name] = (now, others)
        return turn

    def sharers(self, name: str, rank: int | None) -> list[Asked]:
        """Who else wants this answer of the dump of that name."""
        _, others = self._shared.get(name, (0.0, ()))
        return [one for one in others if one.ranks is None or rank in one.ranks]

    def note(self, ranks: Collection[int] | None, now: float) -> None:
        """These ranks are asked now, by whomever."""
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
