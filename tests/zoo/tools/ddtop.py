"""ddtop, as a viewer that looks twice a second."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping

from ddtop.diagnosis.finding import Finding
from tests.benchmarks.stage import Stage
from tests.benchmarks.viewer import follow
from tests.zoo.case import Case
from tests.zoo.judge import watched_s
from tests.zoo.tool import BEGIN_S, Claim, Job, Look

HEALTHY_S = 60.0
_OF_RANKS = re.compile(r"ranks? ([\d,-]+)\b")


class Ddtop:
    """The ranks start with DDTOP=1."""

    name, live = "ddtop", True
    about = "ranks started with DDTOP=1, looked at twice a second"

    def missing(self) -> str:
        """It is this package."""
        return ""

    def unable(self, case: Case) -> str:
        """It tries everything."""
        return ""

    def environment(self, stage: Stage) -> Mapping[str, str]:
        """What `ddtop` wants in the environment of a rank."""
        return {"DDTOP": "1", "DDTOP_SIGNAL": "on"}

    def looks(self, job: Job) -> Iterator[Look]:
        """The findings that stand, twice a second."""
        entry = job.stage.entry(1)
        seconds = HEALTHY_S if job.case.healthy else watched_s(job.case)
        for _, verdict in follow(entry, (BEGIN_S + seconds) * job.slower):
            yield Look(time.time_ns(), tuple(claim(one) for one in verdict.findings))


def claim(finding: Finding) -> Claim:
    """A finding with the evidence that is about the ranks at fault: where a victim waits is not
    the place of the fault.
    """
    lines = [one for one in finding.evidence if not _of_others(one, finding.ranks)]
    text = "\n".join((finding.summary, *lines))
    kinds = frozenset({finding.kind.value})
    return Claim(kinds, tuple(finding.ranks), finding.severity, text)


def _of_others(line: str, culprits: tuple[int, ...]) -> bool:
    found = _OF_RANKS.match(line)
    return bool(found and culprits) and not _numbers(found[1]) & set(culprits)


def _numbers(text: str) -> set[int]:
    """`0,2-4` as a set."""
    numbers: set[int] = set()
    for part in text.strip(",-").split(","):
        first, _, last = part.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers
