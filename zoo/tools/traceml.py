"""TraceML (`pip install traceml-ai`): a summary of step times at the end of a run.

It knows slow ranks and slow input, and no hangs. A program needs two lines: `traceml_ai.init` and
`with traceml_ai.trace_step(model)` around the step. They are put around the first block that has a
backward and a step of an optimizer, as its documents say. The job is started by `traceml run`, and
interrupted some seconds after the fault: the summary is written at the end.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import json
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tools.benchmarks.stage import Stage, StageError, free_port
from zoo.case import OWN, Case
from zoo.judge import watched_s
from zoo.start import Started, prepare
from zoo.tool import Claim, Job, JobError, Look
from zoo.tools.asked import HEALTHY_LOOKS_S

SUMMARY_S = 60.0
"""How long after the interruption it may take to write its summary."""
KINDS = {
    "STRAGGLER": frozenset({"straggler"}),
    "INPUT_STRAGGLER": frozenset({"straggler", "input-bound"}),
    "COMPUTE_STRAGGLER": frozenset({"straggler"}),
    "H2D_STRAGGLER": frozenset({"straggler"}),
    "INPUT_BOUND": frozenset({"input-bound"}),
}
"""What its diagnoses may mean here."""
NOTHING_KNOWN = ("NO_DATA", "WARMUP", "INCOMPLETE_DATA")


def instrumented(text: str) -> str | None:
    """The program with TraceML's two lines; None where no block has a backward and a step of an
    optimizer.
    """
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(node, (ast.FunctionDef, ast.For, ast.While)) or not body:
            continue
        calls = [_method(one) for one in body]
        if "backward" in calls and "step" in calls and (model := _model(body)):
            traced = f"with __import__('traceml_ai').trace_step({model}):\n    pass"
            block = ast.parse(traced).body[0]
            assert isinstance(block, ast.With)
            block.body = list(body)
            node.body = [block]
            start = ast.parse("__import__('traceml_ai').init(mode='auto')").body
            tree.body = [*tree.body[:1], *start, *tree.body[1:]]
            return ast.unparse(ast.fix_missing_locations(tree))
    return None


def _method(node: ast.stmt) -> str:
    """The last method of a statement that is a call."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        function = node.value.func
        return function.attr if isinstance(function, ast.Attribute) else ""
    return ""


def _model(body: list[ast.stmt]) -> str:
    """What is called with the batch: `self.model` or `net`."""
    for node in (one for part in body for one in ast.walk(part)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("model", "net")):
            return ast.unparse(node.func)
    return ""


class TraceML:
    """Asked once, at the end of the run."""

    name, live = "traceml-ai", False
    about = "`traceml run` with its two lines in the program; its summary after an interruption"

    def missing(self) -> str:
        """Whether it is installed."""
        found = importlib.util.find_spec("traceml_ai")
        return "" if found else "not installed (pip install traceml-ai)"

    def unable(self, case: Case) -> str:
        """It knows step times, and needs a step that it can be put around."""
        kinds = {kind for kind, _ in case.expected}
        if kinds and not kinds & frozenset().union(*KINDS.values()):
            return "it knows step times only"
        if case.launcher == OWN or instrumented(case.program.read_text()) is None:
            return "the program has no step that it can be put around"
        return ""

    def start(self, stage: Stage, case: Case, seed: int | None, launcher: str) -> Started:
        """Starts the job by `traceml run`, which is its own launcher."""
        text = instrumented(case.program.read_text())
        if text is None:
            raise StageError("the program has no step that TraceML can be put around")
        program = stage.home / case.program.name
        program.write_text(text)
        started, words = prepare(stage, case, program, seed)
        command = [sys.executable, "-m", "traceml_ai.launcher.cli", "run", str(started.program)]
        command += ["--nproc-per-node", str(case.world), "--master-port", str(free_port())]
        command += ["--aggregator-port", str(free_port()), "--logs-dir", str(stage.home / "logs")]
        environment = stage.environment(False, **dict(case.environment))
        stage.start([*command, "--args", *words], environment, stage.output(0))
        return started

    def looks(self, job: Job) -> Iterator[Look]:
        """Its summary, after the run was interrupted."""
        if job.case.healthy:
            time.sleep(sum(HEALTHY_LOOKS_S) * job.slower)
        else:
            fault = job.wait_for_fault()
            seconds = (watched_s(job.case) - 20.0) * job.slower
            time.sleep(max(0.0, seconds - (time.time_ns() - fault) / 1e9))
        yield _summary(job)


def _summary(job: Job) -> Look:
    with contextlib.suppress(ProcessLookupError):
        job.stage.processes[0].send_signal(signal.SIGINT)
    until = time.monotonic() + SUMMARY_S * job.slower
    while time.monotonic() < until:
        for path in Path(job.stage.home, "logs").rglob("final_summary.json"):
            with contextlib.suppress(ValueError):
                return read(json.loads(path.read_text()))
        time.sleep(0.2)
    raise JobError("TraceML wrote no summary")


def read(summary: Mapping[str, Any]) -> Look:
    """Its diagnosis of the step times, in `final_summary.json`."""
    now = time.time_ns()
    found = summary["step_time"]["diagnosis"]
    if found["kind"] in NOTHING_KNOWN:
        return Look(now, unable=f"{found['status']}: {found['summary']}")
    kinds = KINDS.get(found["kind"])
    if kinds is None:
        return Look(now)
    severity = "critical" if found["severity"] == "crit" else "warning"
    text = f"{found['status']}: {found['summary']}"
    return Look(now, (Claim(kinds, tuple(sorted(found["ranks"])), severity, text),))
