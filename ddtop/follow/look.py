"""The interface between the screens and the facts that they show.

The app asks a `Source` what is true now. It does not know whether the facts come from a relay, a
journal or a test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ddtop.diagnosis.finding import Verdict
from ddtop.follow.history import JobHistory, SeriesHistory
from ddtop.model.facts import Snapshot


@dataclass(frozen=True, slots=True)
class Dump:
    """A request for stacks that this viewer made.

    `expected`: how many answers (also "did not answer, because") will come, None until the relay
    has reported it; `answered`: how many came. `refused`: why nothing will come.
    """

    request: str
    asked_unix_ns: int
    expected: int | None = None
    answered: int = 0
    refused: str | None = None

    @property
    def done(self) -> bool:
        """Whether nothing more will come."""
        return self.refused is not None or (
            self.expected is not None and self.answered >= self.expected
        )


@dataclass(frozen=True, slots=True)
class Look:
    """What is true now.

    `snapshot` is None until the first records came. `contact` is None while the facts are live,
    else one sentence ("relay not heard for 8 s, trying again"); `contact_age_s` is how old the
    facts are then. `dump`: the last request for stacks. `span`: the first and the last moment (unix
    ns) that `Source.travel` can go to; `travelled`: this look is of a moment in the past, or of a
    `recording`, which has no now. `marks`: when (unix ns) something happened in the span, and what:
    the severity of a finding that began, or `gone` for a rank that ended. `past`: the ranks'
    numbers before the moment that is shown. `recall`: returns what was seen over all that is kept,
    at steps of so many ns; it takes seconds, so call it on another thread; None if nothing is kept.
    `job_past`: the numbers of the whole job over all of a recording. `untaped`: why there is no
    `span`, one sentence; None if there is one, or if nothing has come yet. `behind_s`: the facts
    are this old because this viewer cannot read fast enough; None if it can. `settled`:
    there were enough looks for a verdict, and no finding waits for another one.
    """

    snapshot: Snapshot | None
    verdict: Verdict
    contact: str | None = None
    contact_age_s: float | None = None
    dump: Dump | None = None
    span: tuple[int, int] | None = None
    travelled: bool = False
    recording: bool = False
    marks: tuple[tuple[int, str], ...] = ()
    past: SeriesHistory | None = None
    job_past: JobHistory | None = None
    recall: Callable[[int], Iterator[tuple[Snapshot, Verdict]]] | None = None
    untaped: str | None = None
    behind_s: float | None = None
    settled: bool = True


class Source(Protocol):
    """Where the facts come from; all methods are called on one event loop."""

    async def run(self) -> None:
        """Feed itself until it is cancelled."""

    def look(self) -> Look:
        """What is true now; cheap enough to be asked twice a second."""

    def travel(self, at_unix_ns: int | None) -> None:
        """Let `look` show that moment instead of now (the last one of a journal); None: back to
        now."""

    async def ask_stacks(self, ranks: tuple[int, ...], how: str = "") -> str | None:
        """Ask for the stacks of these ranks (empty: all). They come with `look`; a sentence if they
        cannot be asked for. `how`: BY_SIGNAL, those that cannot run Python may get the dump signal;
        NATIVE, with frames of C; or empty."""

    async def send_signal(self, rank: int, number: int) -> str:
        """Send a signal to a rank; returns a sentence with the result."""


@runtime_checkable
class Eager(Protocol):
    """A source that looks by itself, and reports when it has something new for which somebody
    waits."""

    on_news: Callable[[], None]
    """Called on the event loop."""
