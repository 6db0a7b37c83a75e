"""The programs of this bench, started without DDTOP and looked at from outside after the fault.

Each case runs `ddtop diagnose --pid LAUNCHER --json` as a person would. Printed: what was said, the
seconds after the command was typed, and for how long a rank was stopped by a tracer meanwhile.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.benchmarks.stage import Stage, StageError
from tests.benchmarks.table import Row
from tests.zoo.bench import BEGIN_S
from tests.zoo.case import PLAIN, Case, Said
from tests.zoo.catalogue import all_cases
from tests.zoo.start import fault_began, start

AFTER_S = 8.0
"""Somebody looks so long after the fault. A torchrun ends the other ranks before that."""
HEALTHY_LOOKS_S = (4.0, 6.0)
"""When a healthy job is looked at, seconds after its start."""
ANSWER_BAR_S, PAUSE_BAR_S, RIGHT_BAR_RATIO = 6.0, 0.3, 0.8
NEEDS_NUMBERS = frozenset({"collective-mismatch", "wait-cycle", "unmatched-p2p"})
"""Kinds that only sequence numbers, or the peers of calls, can tell: from outside a warning that
the job makes no progress is right, and so is silence."""


@dataclass
class Outcome:
    """`findings`: kind, severity, ranks and sentence. `paused_s`: the longest of all ranks."""

    case: Case
    findings: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    paused_s: float = 0.0
    trouble: str = ""
    over: bool = False
    """No rank was left when somebody looked: gloo's peers end with the first one."""

    @property
    def named(self) -> bool:
        """The right kind with exactly the right ranks."""
        return any(_said(one) in expected(self.case) for one in self.findings)

    @property
    def wrong(self) -> list[dict[str, Any]]:
        """Critical findings that are not right; of a healthy job the warnings too."""
        bad = ("critical",) if self.case.expected else ("critical", "warning")
        return [
            one
            for one in self.findings
            if one["severity"] in bad
            and _said(one) not in expected(self.case)
            and not (_said(one) in self.case.tolerated and one["severity"] != "critical")
        ]


def _said(finding: dict[str, Any]) -> Said:
    return finding["kind"], tuple(finding["ranks"])


def expected(case: Case) -> tuple[Said, ...]:
    """What is right from outside: C code that holds the GIL is known inside only."""
    frozen = [
        ("not-in-collective", ranks)
        for kind, ranks in case.expected
        if kind == "interpreter-frozen"
    ]
    loader = [
        ("loader-stuck", ranks) for kind, ranks in case.expected if kind == "not-in-collective"
    ]
    return (*case.expected, *frozen, *loader)


def in_scope(case: Case) -> bool:
    """Whether a process outside can know it, and the job is still there some seconds later."""
    kinds = {kind for kind, _ in case.expected}
    if case.within_s is not None or case.act is not None or kinds & NEEDS_NUMBERS:
        return False
    ends = kinds & {"rank-crashed", "rank-killed"}
    # torchrun and the parent of spawned ranks end the others.
    return not (ends and case.launcher != PLAIN) and not (
        kinds == {"left-early"} and not case.expected
    )


class Tracers(threading.Thread):
    """Sees how long a tracer holds each process: TracerPid of /proc/PID/status, every 2 ms."""

    def __init__(self, pids: list[int]) -> None:
        super().__init__(daemon=True)
        self.held_s = dict.fromkeys(pids, 0.0)
        self.stop = threading.Event()

    def run(self) -> None:
        """Until `stop` is set."""
        before = time.monotonic()
        while not self.stop.wait(0.002):
            now = time.monotonic()
            for pid in self.held_s:
                try:
                    text = Path(f"/proc/{pid}/status").read_text()
                except OSError:
                    continue
                if "\nTracerPid:\t0\n" not in text:
                    self.held_s[pid] += now - before
            before = now


def run(case: Case) -> Outcome:
    """One case from its start to its end."""
    outcome = Outcome(case)
    with Stage("outside") as stage:
        try:
            start(stage, case, watched=False)
            if case.expected:
                _wait_for_fault(stage, case)
                time.sleep(AFTER_S)
                _look(stage, case, outcome)
            else:
                for seconds in HEALTHY_LOOKS_S:
                    time.sleep(seconds)
                    _look(stage, case, outcome)
        except StageError as error:
            outcome.trouble = str(error)
    return outcome


def _wait_for_fault(stage: Stage, case: Case) -> None:
    until = time.monotonic() + BEGIN_S
    while fault_began(stage, case) is None:
        if time.monotonic() > until:
            raise StageError("the fault did not begin")
        time.sleep(0.1)


def _look(stage: Stage, case: Case, outcome: Outcome) -> None:
    # No poll of the processes: it would take away the zombies that a shell leaves.
    pids = [one.pid for one in stage.processes if _lives(one.pid)]
    if not pids:
        outcome.over = True
        return
    watched = [*pids, *(pid for one in pids for pid in _children(one))]
    tracers = Tracers(watched)
    tracers.start()
    began = time.monotonic()
    words = [sys.executable, "-m", "ddtop", "diagnose", "--json", "--pid", ",".join(map(str, pids))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    outcome.seconds = max(outcome.seconds, time.monotonic() - began)
    tracers.stop.set()
    tracers.join()
    outcome.paused_s = max(outcome.paused_s, *tracers.held_s.values())
    if done.returncode == 3 and "there is no process" in done.stderr:
        outcome.over = bool(case.expected)
        return
    try:
        outcome.findings += [
            one for one in json.loads(done.stdout)["findings"] if one["severity"] != "info"
        ]
    except (ValueError, KeyError):
        outcome.trouble = f"exit code {done.returncode}: {done.stderr[-400:]}"


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


HEAD = f"{'CASE':<19} {'EXPECTED':<34} {'SAID':<34} {'S':>5} {'PAUSE':>6}"


def line(outcome: Outcome) -> str:
    """One row; below it each sentence of what is not right."""
    case = outcome.case
    wanted = " | ".join(f"{kind} {ranks}" for kind, ranks in case.expected) or "nothing"
    said = "; ".join(f"{kind} {ranks}" for kind, ranks in map(_said, outcome.findings)) or "nothing"
    good = not outcome.wrong and (outcome.named or not case.expected or not in_scope(case))
    verdict = "over" if outcome.over else "ok" if good else "WRONG" if outcome.wrong else "missed"
    rows = [
        f"{case.name:<19} {wanted[:34]:<34} {said[:34]:<34} {outcome.seconds:5.1f}"
        f" {outcome.paused_s:6.3f}  {verdict}"
    ]
    if not good or outcome.wrong:
        rows += [f"    {one['severity']} {one['summary']}" for one in outcome.findings]
    else:
        rows += [f"    {one['summary']}" for one in outcome.findings[:1]]
    rows += [f"    {text}" for text in outcome.trouble.splitlines()[:6]]
    return "\n".join(rows)


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """Rows over all cases; the table of the cases goes to stdout as they end."""
    cases = all_cases()
    every = [name for name, case in cases.items() if in_scope(case) or not case.expected]
    names = options.case.split(",") if options.case else every
    print(HEAD, flush=True)
    outcomes = []
    for name in names:
        outcomes.append(run(cases[name]))
        print(line(outcomes[-1]), flush=True)
    yield from rows(outcomes)


def rows(outcomes: list[Outcome]) -> Iterator[Row]:
    """Right kinds, wrong critical findings, seconds, pauses, silence on healthy jobs."""
    over = [one.case.name for one in outcomes if one.over]
    if over:
        yield Row("from outside: over before the look", str(len(over)), detail=", ".join(over))
    outcomes = [one for one in outcomes if not one.over]
    faults = [one for one in outcomes if one.case.expected and in_scope(one.case)]
    healthy = [one for one in outcomes if not one.case.expected]
    if faults:
        right = [one for one in faults if one.named]
        missed = ", ".join(one.case.name for one in faults if not one.named)
        ratio = len(right) / len(faults)
        text = f"{len(right)} of {len(faults)}"
        yield Row("from outside: named right", text, ">= 80 %", ratio >= RIGHT_BAR_RATIO, missed)
        bad = sum(len(one.wrong) for one in outcomes if one.case.expected)
        yield Row("from outside: wrong critical findings", str(bad), "0", bad == 0)
    if outcomes:
        longest = max(one.seconds for one in outcomes)
        detail = f"median {sorted(one.seconds for one in outcomes)[len(outcomes) // 2]:.1f} s"
        bar = f"<= {ANSWER_BAR_S:.0f} s"
        passed = longest <= ANSWER_BAR_S
        yield Row("from outside: longest answer", f"{longest:.1f} s", bar, passed, detail)
        held = max(one.paused_s for one in outcomes)
        yield Row("from outside: longest pause", f"{held:.3f} s", "<= 0.3 s", held <= PAUSE_BAR_S)
    if healthy:
        loud = ", ".join(one.case.name for one in healthy if one.wrong)
        silent = sum(not one.wrong for one in healthy)
        text = f"{silent} of {len(healthy)}"
        yield Row("from outside: healthy jobs silent", text, "all", silent == len(healthy), loud)
