"""The ranks' answers about their arrivals in collectives, by round."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ddtop.model.state.straggler_facts import Balance, Late
from ddtop.wire.records import Arrivals
from ddtop.wire.times import moved

ROUNDS_KEPT = 6


@dataclass(frozen=True, slots=True)
class Answer:
    """What one rank has answered in a round, and on which host."""

    rank: int
    host: str
    unix_ns: int
    arrivals: Arrivals
    #: Recently its main thread was in backward more than in collectives, so it waits for gradients.
    overlaps: bool = False
    #: Its answer in the round before.
    before: Arrivals | None = None
    #: How far its host's clock may be off the hub's; None: not measured.
    error_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """The result of one read of the arrivals."""

    late: tuple[Late, ...] = ()
    balances: tuple[Balance, ...] = ()


class Rounds:
    """The last answers of the ranks, by the request that they answer.

    `found` holds the result of each round, so that it is computed only once.
    """

    def __init__(self) -> None:
        self.answers: dict[str, dict[int, Answer]] = {}
        self.found: dict[str, tuple[tuple[str, ...], Round]] = {}

    def add(self, answer: Answer) -> None:
        """Add one answer."""
        request = answer.arrivals.request
        rounds = self.answers.values()
        before = next((one[answer.rank] for one in reversed(rounds) if answer.rank in one), None)
        if before is not None and before.arrivals.request != request:
            answer = replace(answer, before=before.arrivals)
        self.answers.setdefault(request, {})[answer.rank] = answer
        self.found.pop(request, None)
        while len(self.answers) > ROUNDS_KEPT:
            oldest = next(iter(self.answers))
            del self.answers[oldest]
            self.found.pop(oldest, None)

    def __copy__(self) -> Rounds:
        made = Rounds()
        made.answers = {request: dict(answers) for request, answers in self.answers.items()}
        made.found = dict(self.found)
        return made

    def move(self, host: str, by_ns: int) -> None:
        """Add `by_ns` to all times of that host: the offset of its clock was corrected."""
        for answers in self.answers.values():
            for rank, one in answers.items():
                if one.host == host:
                    before = moved(one.before, by_ns) if one.before is not None else None
                    answers[rank] = replace(
                        one,
                        unix_ns=one.unix_ns + by_ns,
                        arrivals=moved(one.arrivals, by_ns),
                        before=before,
                    )
        self.found.clear()

    def clear(self) -> None:
        """Forget everything: another attempt begins."""
        self.answers.clear()
        self.found.clear()

    def __bool__(self) -> bool:
        return bool(self.answers)
