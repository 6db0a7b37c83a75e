"""Runs one case with one tool, from its start to its end; and many, so that they can be resumed."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ddtop.diagnosis.kinds import Kind
from tools.benchmarks.stage import Stage, StageError
from zoo.case import Case
from zoo.judge import AFTER_S, Outcome, begun, ended, take, watched_s
from zoo.keep import keep
from zoo.place import Places
from zoo.start import last_words, may_start
from zoo.tool import Job, JobError, Tool

HEALTHY_S = 45.0
"""How long a healthy job may take to end."""
TRIES = 4
SLOWER_UNDER_LOAD = 2.0
"""Factor on all limits and bars beside other processes that compute."""


@dataclass(frozen=True)
class Options:
    """How cases are run. `seed`: names are shuffled with it; `load`: beside so many processes that
    compute; `launcher`: instead of the case's own; `patience`: factor on all limits where the
    machine does something else too; `after_s`: how long a fault is watched once it is named.
    """

    seed: int | None = None
    load: int = 0
    launcher: str = ""
    patience: float = 1.0
    after_s: float = AFTER_S

    @property
    def slower(self) -> float:
        """Factor on all limits."""
        return max(self.patience, SLOWER_UNDER_LOAD if self.load else 1.0)


def left_out(case: Case, options: Options) -> str:
    """Why a case is not run with these options; empty if it is."""
    if absent := [name for name in case.needs if importlib.util.find_spec(name) is None]:
        return f"needs {', '.join(absent)}"
    if options.launcher and not may_start(case, options.launcher):
        return f"not under {options.launcher}"
    return ""


def run(case: Case, tool: Tool, options: Options = Options(), into: Path | None = None) -> Outcome:
    """One case from its start to its end. `into`: the folder in which its recording is kept."""
    outcome = begun(case, tool.name, options.slower)
    outcome.options = asdict(options)
    outcome.date = time.strftime("%Y-%m-%d %H:%M")
    outcome.unable = tool.missing() or tool.unable(case)
    if not outcome.unable:
        with Stage("verdict") as stage:
            stage.crash_expected = any(
                kind == Kind.RANK_KILLED.value for kind, _ in (*case.expected, *case.tolerated)
            )
            try:
                _watch(stage, case, tool, options, outcome)
                if into is not None:
                    keep(case, outcome, stage.home, into)
            except (StageError, JobError) as error:
                outcome.trouble = str(error)
    outcome.load = os.getloadavg()[0]
    return outcome


def _watch(stage: Stage, case: Case, tool: Tool, options: Options, outcome: Outcome) -> None:
    started = tool.start(stage, case, options.seed, options.launcher)
    places = Places(case, started.program, started.renamed)
    job = Job(stage, case, started.program, options.slower)
    first: int | None = None
    early = []
    for look in tool.looks(job):
        first = first or look.at_unix_ns
        zero = first if case.healthy else job.fault_unix_ns
        if zero is None:
            early.append(look)
            if job.fault_is_late(look.at_unix_ns):
                break
            continue
        for one in (*early, look):
            take(outcome, case, places, one, zero)
        early.clear()
        if _is_over(job, outcome, (look.at_unix_ns - zero) / 1e9, tool.live, options.after_s):
            break
    if case.healthy:
        _wait_for_end(job, outcome, tool.live)
        outcome.failed_itself = any(process.poll() for process in stage.processes)
    elif job.fault_unix_ns is None:
        raise StageError(f"the fault did not begin\n{last_words(stage)}")
    ended(outcome, case)


def _is_over(job: Job, outcome: Outcome, at: float, live: bool, after_s: float) -> bool:
    """Whether the looks until `at` seconds are enough."""
    case = job.case
    if not live:
        return not case.healthy
    if not case.healthy:
        wait_s = watched_s(case) * job.slower
        return at > (wait_s if outcome.named_s is None else outcome.named_s + after_s)
    if job.over:
        # Its own end is part of a healthy job.
        outcome.ended_s = at if outcome.ended_s is None else outcome.ended_s
        return at > outcome.ended_s + AFTER_S
    return at > HEALTHY_S * job.slower


def _wait_for_end(job: Job, outcome: Outcome, live: bool) -> None:
    """A tool that is asked once need not look until a healthy job ends."""
    if live or outcome.ended_s is not None:
        return
    outcome.ended_s = (time.time_ns() - job.began_unix_ns) / 1e9


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """This many processes that compute without end, one core each if the machine has them."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run_all(
    cases: Sequence[Case],
    tools: Sequence[Tool],
    options: Options,
    repeat: int = 1,
    resume: Path | None = None,
    show: Callable[[Outcome], None] = lambda outcome: None,
    into: Path | None = None,
) -> list[Outcome]:
    """Each case with each tool, so many times; what the file `resume` has already is not run again,
    and what is run is written there at once. `into`: the folder in which the recordings are kept.
    """
    done = read_outcomes(resume) if resume else []
    outcomes = []
    with busy_processes(options.load):
        for case in cases:
            for tool in tools:
                had = [one for one in done if _same(one, case, tool, options)]
                outcomes += had
                counted = sum(not one.failed_itself for one in had)
                for _ in range(repeat - counted):
                    for outcome in _tried(case, tool, options, into):
                        show(outcome)
                        outcomes.append(outcome)
                        if resume:
                            with resume.open("a") as file:
                                file.write(json.dumps(outcome.as_json()) + "\n")
    return outcomes


def _same(outcome: Outcome, case: Case, tool: Tool, options: Options) -> bool:
    mine = (case.name, tool.name, asdict(options))
    return (outcome.case, outcome.tool, outcome.options) == mine


def _tried(case: Case, tool: Tool, options: Options, into: Path | None) -> Iterator[Outcome]:
    """The outcome of the case. It is run once more if the program itself failed: torch's elastic
    restarts on gloo fail at times, also without ddtop.
    """
    for _ in range(TRIES):
        outcome = run(case, tool, options, into)
        yield outcome
        if not outcome.failed_itself:
            return


def read_outcomes(path: Path) -> list[Outcome]:
    """What a file of lines has; the last line may be cut off."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):
            found.append(Outcome.from_json(json.loads(line)))
    return found
