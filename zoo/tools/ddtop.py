"""ddtop, as a viewer that looks twice a second."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Generator, Iterator

from ddtop import registry
from ddtop.cli.outside_jobs import judge_launchers
from ddtop.diagnosis.finding import Finding
from ddtop.folders import RegistryError
from tools.benchmarks.stage import APPEAR_S, Stage, StageError
from tools.benchmarks.viewer import follow
from zoo.case import Case
from zoo.judge import watched_s
from zoo.start import Started, start
from zoo.tool import BEGIN_S, Claim, Job, Look
from zoo.tools.asked import processes

HEALTHY_S, LOOK_S = 60.0, 0.5
_OF_RANKS = re.compile(r"ranks? ([\d,-]+)\b")


class Ddtop:
    """The ranks start with DDTOP=1."""

    name, live = "ddtop", True
    about = "ranks started with DDTOP=1, looked at twice a second"

    def missing(self) -> str:
        """ddtop is always installed."""
        return ""

    def unable(self, case: Case) -> str:
        """ddtop tries every case."""
        return ""

    def start(self, stage: Stage, case: Case, seed: int | None, launcher: str) -> Started:
        """Starts the job with ddtop's variables in the environment of each rank."""
        return start(stage, case, seed, launcher, {"DDTOP": "1", "DDTOP_SIGNAL": "on"})

    def looks(self, job: Job) -> Iterator[Look]:
        """The findings of each moment, twice a second."""
        entry = yield from _entry(job)
        seconds = HEALTHY_S if job.case.healthy else watched_s(job.case)
        until = time.monotonic() + (BEGIN_S + seconds) * job.slower
        while entry is not None:
            followed, entry = entry, None
            for _, verdict in follow(followed, until - time.monotonic()):
                yield Look(time.time_ns(), tuple(claim(one) for one in verdict.findings))
                entry = _hub_instead(followed)
                if entry is not None:
                    break


def _entry(job: Job) -> Generator[Look, None, registry.JobEntry]:
    """The job's entry. Until there is a rank, what is said about a launcher that waits."""
    until = time.monotonic() + APPEAR_S * job.slower
    while True:
        try:
            return job.stage.entry(1, LOOK_S)
        except StageError:
            ended = any(process.poll() for process in job.stage.processes)
            if ended or time.monotonic() > until:
                raise
        judged = judge_launchers("", processes(job.stage))
        if judged is not None and judged[1].findings:
            yield Look(time.time_ns(), tuple(claim(one) for one in judged[1].findings))


def _hub_instead(entry: registry.JobEntry) -> registry.JobEntry | None:
    """The relay that a name means now, where two launchers on this host have one each; None: it is
    still this one.
    """
    with contextlib.suppress(RegistryError, registry.UnknownJobError):
        found = registry.find_job(entry.job, time.time_ns())
        if found.role == "hub" and (found.address, found.port) != (entry.address, entry.port):
            return found
    return None


def claim(finding: Finding) -> Claim:
    """A finding with the evidence that is about the ranks at fault: where a victim waits is not
    the place of the fault.
    """
    lines = [one for one in finding.evidence if not _of_others(one, finding.ranks)]
    text = "\n".join((finding.summary, *lines))
    kinds = frozenset({finding.kind.value})
    return Claim(kinds, tuple(finding.ranks), finding.severity, text, finding.advice)


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
