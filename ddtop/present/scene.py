"""What the panels below the ranks are made of: one look at the job, and what is remembered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ddtop.diagnosis.finding import CRITICAL, OK, Finding, Verdict
from ddtop.diagnosis.rank_state import culprits
from ddtop.follow.history import (
    PERIOD_NS,
    Field,
    JobHistory,
    Numbers,
    SeriesHistory,
)
from ddtop.model.facts import RankFacts, Snapshot
from ddtop.model.stacks import Merged
from ddtop.present.events import EventRow
from ddtop.present.lanes import Lanes
from ddtop.present.log import Read as ReadLog
from ddtop.present.stacks import Read
from ddtop.present.strip import (
    Comparison,
    against_last_run,
    axis_line,
    compared,
    span_ns,
)
from ddtop.present.text import UNICODE, Glyphs, Line

_CALM = Verdict(OK, (), "")


@dataclass(frozen=True)
class Scene:
    """One look. `merged`: the last stacks. `read`: returns the source around a line. `rows`: of the
    ranks that the table above shows. `log`: returns the end of a file."""

    snapshot: Snapshot
    history: JobHistory
    verdict: Verdict = _CALM
    events: Sequence[EventRow] = ()
    memories: SeriesHistory | None = None
    merged: Merged | None = None
    read: Read | None = None
    glyphs: Glyphs = UNICODE
    rows: int = 0
    log: ReadLog | None = None

    @property
    def quiet(self) -> bool:
        """There is a critical finding, so nothing of the whole job may draw the eye."""
        return self.verdict.health == CRITICAL

    @property
    def finding(self) -> Finding | None:
        """The worst one."""
        return next(iter(self.verdict.findings), None)

    @cached_property
    def at_fault(self) -> tuple[int, ...]:
        """The ranks at fault; those of a warning if nothing is critical."""
        found = tuple(culprits(self.verdict))
        return found or (self.finding.ranks if self.finding is not None else ())

    @property
    def culprit(self) -> RankFacts | None:
        """The first of them."""
        ranks = self.finding.ranks if self.finding is not None else ()
        return self.snapshot.rank(ranks[0]) if ranks else None

    @property
    def until_unix_ns(self) -> int:
        """The shown moment; of a job that has ended, its end."""
        ended = self.snapshot.ended
        over = ended is not None and not self.snapshot.live
        return ended.time_unix_ns if ended is not None and over else self.snapshot.time_unix_ns

    @property
    def lanes(self) -> Lanes:
        """What the ranks did up to this moment, at best since before the fault."""
        memory_of = (self.memories or SeriesHistory()).memory_of
        since = self.finding.since_unix_ns // PERIOD_NS if self.finding is not None else None
        return Lanes(memory_of, self.until_unix_ns // PERIOD_NS, since)

    @property
    def marks(self) -> list[tuple[int, str]]:
        """When findings began (unix ns), and how severe they are."""
        return [
            (row.unix_ns, row.event.finding.severity)
            for row in self.events
            if row.event.finding is not None and not row.over
        ]

    def style(self, name: str) -> str:
        """This style, or the quiet one."""
        return "dim" if self.quiet else name

    @property
    def compared(self) -> Comparison:
        """The speed now compared with before; not shown while a finding says what is wrong."""
        if self.quiet:
            return Comparison()
        return compared(self.history, self.until_unix_ns, against_last_run(self.snapshot))

    @cached_property
    def now(self) -> Numbers:
        """The numbers of the last seconds."""
        # A mean would show a speed that the job no longer has.
        still = self.snapshot.still_since_unix_ns is not None
        return self.history.now(self.until_unix_ns, newest=still)

    def span_ns(self, field: Field) -> int:
        """How much time its chart shows."""
        return span_ns(self.history, self.until_unix_ns, field)

    def line(self, field: Field, cells: int) -> list[float | None]:
        """The values of that time."""
        return self.history.line(field, cells, self.span_ns(field), self.until_unix_ns)

    def axis(self, columns: int, span: int) -> Line:
        """The axis below a chart of the last `span` (ns), with marks where findings began."""
        until = self.until_unix_ns
        end = "now" if self.snapshot.live else "end"
        line = axis_line((until - span, until), columns, self.marks, self.glyphs, end)
        return tuple((text, self.style(style) if style == "" else style) for text, style in line)
