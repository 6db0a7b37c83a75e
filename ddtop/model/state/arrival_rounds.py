"""What ranks have answered about their arrivals in collectives, by round."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ddtop.model.state.straggler_facts import Balance, Late
from ddtop.wire.records import Arrivals
from ddtop.wire.times import moved

ROUNDS_KEPT = 6


@dataclass(frozen=True, slots=True)
class Answer:
    """What one rank has said in a round, and on which host.

    `overlaps`: its main thread was more in backward than in collectives lately, as that of a rank is which waits for
    gradients. `before`: what it said a round earlier. `error_ns`: how far its host's clock may be off the hub's, None: nobody knows.
    """

    rank: int
    host: str
    unix_ns: int
    arrivals: Arrivals
    overlaps: bool = False
    before: Arrivals | None = None
    error_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """What follows from one read of the arrivals."""

    late: tuple[Late, ...] = ()
    balances: tuple[Balance, ...] = ()


class Rounds:
    """Answers of the ranks by the request that they answer, the last few; what follows from a round is worked out once."""

    def __init__(self) -> None:
        self.answers: dict[str, dict[int, Answer]] = {}
        self.found: dict[str, tuple[tuple[str, ...], Round]] = {}

    def add(self, answer: Answer) -> None:
        """One more answer."""
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
        """What the ranks of that host have answered was that much later, by the hub's clock."""
        for answers in self.answers.values():
            for rank, one in answers.items():
                if one.host == host:
                    before = moved(one.before, by_ns) if one.before is not None else None
                    answers[rank] = replace(
                        one, unix_ns=one.unix_ns + by_ns, arrivals=moved(one.arrivals, by_ns), before=before
                    )
        self.found.clear()

    def clear(self) -> None:
        """Forget all: another attempt."""
        self.answers.clear()
        self.found.clear()

    def __bool__(self) -> bool:
        return bool(self.answers)
