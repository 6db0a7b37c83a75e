"""Runs cases one after the other, watches each as a viewer does, and says what was right and
what was not.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from ddtop.diagnosis.finding import Finding, Verdict
from tests.benchmarks.stage import Stage, StageError
from tests.benchmarks.table import Row
from tests.benchmarks.viewer import follow
from tests.zoo.case import Case, Said
from tests.zoo.catalogue import all_cases
from tests.zoo.start import fault_began, last_words, start

BEGIN_S, NAME_S, HEALTHY_S = 40.0, 16.0, 45.0
"""How long a fault may take to begin and to be named, and a healthy job to end."""
AFTER_S = 3.0
"""Watched on after the right verdict, or after a healthy job's end: what comes then may be
wrong.
"""
TRIES = 4
SECONDS_BAR_S, RIGHT_BAR_RATIO = 8.0, 0.99
SLOWER_UNDER_LOAD = 2.0
"""Factor on all limits and bars beside other processes that compute."""


@dataclass
class Outcome:
    """What a viewer read. `named_s`: from the fault to the right finding; None, if it was never
    read. `ended_s`: from the first look to a healthy job's end; None, if it went on too long.

    `wrong`: the critical findings that are not right, of a healthy job the warnings too, each with
    the seconds (from the fault, or from the first look) in which it stood. `last`: what stood at
    the end.
    """

    case: Case
    named_s: float | None = None
    ended_s: float | None = None
    wrong: dict[Said, tuple[float, float, Finding]] = field(default_factory=dict)
    beside: dict[Said, tuple[float, float, Finding]] = field(default_factory=dict)
    last: tuple[Finding, ...] = ()
    trouble: str = ""
    slower: float = 1.0
    failed_itself: bool = False
    """A program that should have been healthy ended with an exit code: what was said of it
    judges nobody.
    """

    @property
    def right(self) -> bool:
        """Named (or, of a healthy job, not named), and nothing wrong on the way."""
        if self.trouble or (self.ended_s is None and not self.case.expected):
            return False
        stands = not self.case.expected or any(
            _said(one) in self.case.expected for one in self.last
        )
        return stands and not self.wrong and (self.named_s is not None or not self.case.expected)


def _said(finding: Finding) -> Said:
    return finding.kind, tuple(finding.ranks)


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """So many processes that compute without end, one core each if the machine has them."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run(case: Case, seed: int | None = None, slower: float = 1.0) -> Outcome:
    """One case from its start to its end. `slower`: factor on all limits, for a machine under
    load.
    """
    outcome = Outcome(case, slower=slower)
    with Stage("verdict") as stage:
        try:
            _watch(stage, case, seed, outcome)
        except StageError as error:
            outcome.trouble = str(error)
    return outcome


def _watch(stage: Stage, case: Case, seed: int | None, outcome: Outcome) -> None:
    start(stage, case, seed)
    entry = stage.entry(1)
    began, fault = time.time_ns(), None
    seen: list[tuple[int, tuple[Finding, ...]]] = []
    for _, verdict in follow(
        entry, (BEGIN_S + max(HEALTHY_S, case.within_s or 0.0)) * outcome.slower
    ):
        now = time.time_ns()
        seen.append((now, verdict.findings))
        if fault is None and case.expected:
            fault = fault_began(stage, case)
        if fault is not None and case.expected and outcome.named_s is None:
            outcome.named_s = _named(case, verdict, now, fault)
        if _over(stage, case, outcome, now - began, fault, now):
            break
    if case.expected and fault is None:
        raise StageError(f"the fault did not begin\n{last_words(stage)}")
    outcome.last = seen[-1][1] if seen else ()
    outcome.failed_itself = not case.expected and any(process.poll() for process in stage.processes)
    _collect(case, outcome, seen, fault or began)
    if case.restarts:
        for finding in outcome.last:
            outcome.wrong.setdefault(_said(finding), (0.0, 0.0, finding))


def _named(case: Case, verdict: Verdict, now: int, fault: int) -> float | None:
    if any(_said(finding) in case.expected for finding in verdict.findings):
        return (now - fault) / 1e9
    return None


def _over(
    stage: Stage, case: Case, outcome: Outcome, looked_ns: int, fault: int | None, now: int
) -> bool:
    if case.expected:
        if fault is None:
            return looked_ns > BEGIN_S * outcome.slower * 1e9
        within_s = (case.within_s or NAME_S) * outcome.slower
        limit_s = within_s if outcome.named_s is None else outcome.named_s + AFTER_S
        return now - fault > limit_s * 1e9
    if all(process.poll() is not None for process in stage.processes):
        # Its own end is part of a healthy job.
        outcome.ended_s = looked_ns / 1e9 if outcome.ended_s is None else outcome.ended_s
        return looked_ns / 1e9 > outcome.ended_s + AFTER_S
    return looked_ns > HEALTHY_S * outcome.slower * 1e9


def _collect(
    case: Case, outcome: Outcome, seen: list[tuple[int, tuple[Finding, ...]]], zero: int
) -> None:
    for now, findings in seen:
        at = (now - zero) / 1e9
        for finding in findings:
            said = _said(finding)
            fine = said in case.expected and not (
                case.warning_only and finding.severity == "critical"
            )
            if (fine and at > -0.5) or finding.severity == "info":
                continue
            if said in case.tolerated and (finding.severity != "critical" or case.restarts):
                into = outcome.beside
            elif finding.severity == "critical" or not case.expected:
                into = outcome.wrong
            else:
                into = outcome.beside
            first = into[said][0] if said in into else at
            into[said] = (first, at, finding)


# -- the table


def _ranks(said: Said) -> str:
    return f"{said[0]} {','.join(map(str, said[1])) or '-'}"


def line(outcome: Outcome) -> str:
    """One row; below it what was wrong, and what else was said."""
    case = outcome.case
    expected = " | ".join(_ranks(one) for one in case.expected) or "nothing"
    last = "; ".join(_ranks(_said(one)) for one in outcome.last) or "nothing"
    seconds = (
        f"{outcome.named_s:5.1f}" if case.expected and outcome.named_s is not None else "    -"
    )
    verdict = "ok" if outcome.right else "FAILED BY ITSELF" if outcome.failed_itself else "WRONG"
    first = (
        f"{case.name:<19} {expected[:44]:<44} {last[:36]:<36} {seconds} {len(outcome.wrong):>3} "
        f" {verdict}"
    )
    rows = [first]
    for mark, found in (("wrong", outcome.wrong), ("beside", outcome.beside)):
        rows += [
            f"    {mark} {begin:+.1f}..{end:+.1f} s {one.severity} {one.kind}: {one.summary}"
            for begin, end, one in found.values()
        ]
    if not outcome.right:
        for one in outcome.last:
            rows.append(f"    at the end {one.severity} {one.kind}: {one.summary}")
            rows += [f"        {text}" for text in one.evidence]
    rows += [f"    {part}" for part in outcome.trouble.splitlines()[:30]]
    return "\n".join(rows)


def listed() -> str:
    """Every case with its program and its story."""
    return "\n".join(
        f"{case.name:<20} {case.program.name:<16} {case.story}" for case in all_cases().values()
    )


HEAD = f"{'CASE':<19} {'EXPECTED':<44} {'SAID AT THE END':<36} {'S':>5} {'BAD':>3}"


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """Rows over all cases; the table of the cases goes to stdout as they end."""
    cases = all_cases()
    names = options.case.split(",") if options.case else list(cases)
    unknown = [name for name in names if name not in cases]
    if unknown:
        raise StageError(f"no case named {', '.join(unknown)}; there are: {', '.join(cases)}")
    print(HEAD, flush=True)
    outcomes = []
    slower = SLOWER_UNDER_LOAD if options.under_load else 1.0
    with busy_processes(options.under_load):
        for name in names:
            for _ in range(options.repeat):
                outcomes += _tried(cases[name], options.shuffle_names, slower)
    yield from rows(outcomes)


def _tried(case: Case, seed: int | None, slower: float) -> Iterator[Outcome]:
    """The case, and once more where the program itself failed: torch's elastic restarts on gloo
    do, also without ddtop.
    """
    for _ in range(TRIES):
        outcome = run(case, seed, slower)
        print(line(outcome), flush=True)
        yield outcome
        if not outcome.failed_itself:
            return


def rows(outcomes: list[Outcome]) -> Iterator[Row]:
    """Right verdicts, p95 of their seconds, wrong critical findings, silence on healthy jobs."""
    faults = [one for one in outcomes if one.case.expected]
    healthy = [one for one in outcomes if not one.case.expected and not one.failed_itself]
    bad = sum(len(one.wrong) for one in faults)
    if faults:
        right = sum(one.named_s is not None and not one.trouble for one in faults)
        ratio = right / len(faults)
        missed = ", ".join(one.case.name for one in faults if one.named_s is None)
        yield Row(
            "faults named right",
            f"{right} of {len(faults)}",
            ">= 99 %",
            ratio >= RIGHT_BAR_RATIO,
            missed,
        )
    halting = [one for one in faults if one.case.within_s is None]
    if halting:
        slower = halting[0].slower
        seconds = sorted(NAME_S * slower if one.named_s is None else one.named_s for one in halting)
        bar_s = SECONDS_BAR_S * slower
        p95 = seconds[min(len(seconds) - 1, int(0.95 * len(seconds)))]
        detail = (
            f"median {seconds[len(seconds) // 2]:.1f} s, longest {seconds[-1]:.1f} s; not named"
            f" counts {NAME_S * slower:.0f} s"
        )
        yield Row(
            "seconds to the right verdict, p95",
            f"{p95:.1f} s",
            f"<= {bar_s:.0f} s",
            p95 <= bar_s,
            detail,
        )
    if faults:
        yield Row("wrong critical findings about faults", str(bad), "0", bad == 0)
    if slow := [one for one in faults if one.case.within_s is not None]:
        late = [
            one.case.name
            for one in slow
            if one.named_s is None or one.named_s > (one.case.within_s or 0.0) * one.slower
        ]
        named = sorted(one.named_s for one in slow if one.named_s is not None)
        detail = f"longest {named[-1]:.1f} s" if named else ""
        yield Row(
            "slow jobs named in their time",
            f"{len(slow) - len(late)} of {len(slow)}",
            "all",
            not late,
            ", ".join(late) or detail,
        )
    if healthy:
        silent = sum(one.right for one in healthy)
        loud = ", ".join(one.case.name for one in healthy if not one.right)
        yield Row(
            "healthy jobs left in peace",
            f"{silent} of {len(healthy)}",
            "all",
            silent == len(healthy),
            loud,
        )
    if itself := [one.case.name for one in outcomes if one.failed_itself]:
        yield Row("healthy programs that failed", str(len(itself)), detail=", ".join(itself))
