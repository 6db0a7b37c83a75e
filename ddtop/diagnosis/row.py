"""The row of a rule: what it reports, what it reads, and what keeps it silent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ddtop.diagnosis.finding import CRITICAL, WARNING, Context, Finding
from ddtop.diagnosis.kinds import Is, Kind
from ddtop.diagnosis.shortage import is_reported

Rule = Callable[[Context], list[Finding]]
Fold = Callable[[Context, list[Finding]], list[Finding]]
Condition = Callable[[Context], bool]


@dataclass(frozen=True, slots=True)
class RuleRow:
    """One rule."""

    #: Its findings at this moment.
    rule: Rule
    #: The kinds that it may report.
    kinds: tuple[Kind, ...]
    #: The facts that it reads, in words.
    reads: str
    #: Fields of the snapshot. The rule is silent while one of them is empty.
    needs: tuple[str, ...] = ("ranks",)
    #: Rules above. Any finding of one of them silences this rule.
    silenced_by: tuple[str, ...] = ()
    #: The rule is silent while one of these is true.
    unless: tuple[Condition, ...] = ()
    #: Rules above. This rule leaves out the ranks that they have reported (`Context.explained`).
    leaves_out: tuple[str, ...] = ()
    #: Returns all findings after this rule, if it completes or replaces findings of rules above.
    fold: Fold | None = None
    #: Its finding may have begun before the finding that silences it. Then it is a separate cause
    #: and is kept (`earlier_than`).
    may_be_earlier: bool = False

    @property
    def name(self) -> str:
        """That of its function, or of its file where the function is only called `rule`."""
        name = self.rule.__name__
        return self.rule.__module__.rpartition(".")[2] if name == "rule" else name

    def can_speak(self, context: Context) -> bool:
        """Whether the snapshot has what the rule reads, and the rule applies to this job."""
        # Lists, because each look asks each rule: generators took a sixth of the look.
        return not [name for name in self.needs if not getattr(context.snapshot, name)] and not [
            one for one in self.unless if one is not end_explains_all and one(context)
        ]

    def silencers(self, context: Context) -> tuple[Finding, ...]:
        """The findings so far that explain this rule's finding."""
        names = self.silenced_by
        if end_explains_all in self.unless and end_explains_all(context):
            names = (*names, *ENDS)
        return tuple(finding for name in names for finding in context.reported.get(name, ()))

    def ranks_left_out(self, reported: Mapping[str, tuple[Finding, ...]]) -> Iterator[int]:
        """The ranks that the rules in `leaves_out` have reported."""
        for name in self.leaves_out:
            for finding in reported.get(name, ()):
                yield from finding.ranks


STARTS = ("rendezvous", "starting", "unreachable")
ENDS = (*STARTS, "mpi_truncated", "aborted", "departures")
"""A failed rendezvous explains why ranks gave up; a departure explains later waits."""
CAUSES = (*ENDS, "stopped", "group_calls", "mismatch")
"""Rules whose findings explain every wait."""
OF_WAITS = (*CAUSES, "hang")
"""The same, with the calls that have parted."""


def job_has_ended(context: Context) -> bool:
    """No process of the job is left."""
    return context.snapshot.ended is not None


def end_explains_all(context: Context) -> bool:
    """No rank makes progress, because a rank has ended or never started."""
    ends = (finding for name in ENDS for finding in context.reported.get(name, ()))
    return not context.snapshot.moving and any(finding.severity == CRITICAL for finding in ends)


def anything_critical(context: Context) -> bool:
    """Some finding so far is critical."""
    return any(finding.severity == CRITICAL for finding in context.found)


def hang_found(context: Context) -> bool:
    """Some finding so far is critical, and is not about a slow rank."""
    return any(
        finding.severity == CRITICAL and finding.kind != Kind.STRAGGLER for finding in context.found
    )


def backend_reports_error(context: Context) -> bool:
    """A rank reports an error of its backend: then `comm-error` explains its wait better."""
    return is_reported(context.snapshot)


def waits_are_explained(context: Context) -> bool:
    """Some finding so far says which rank others wait for."""
    return any(finding.victims for finding in context.found)


def standstill_is_explained(context: Context) -> bool:
    """Some finding so far may explain why the job makes no progress."""
    return any(
        finding.severity == CRITICAL
        or (finding.severity == WARNING and not finding.kind.is_any(Is.BESIDE))
        for finding in context.found
    )


RUNS = (job_has_ended, end_explains_all)
"""For rules about a job that still runs."""
MOVES = (*RUNS, hang_found)
"""For rules about a job that makes progress."""
