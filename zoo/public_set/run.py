"""Runs one program under mpirun, and asks ddtop about it as a user does."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tools.benchmarks.stage import Stage
from zoo.public_set.programs import Program
from zoo.public_set.score import verdict

ASKED_AFTER_S, WHILE_S = 9.0, 3.0
BEGINS_S, ENDS_S, ANSWERS_S, EFFECT_S = 60.0, 60.0, 60.0, 30.0


def run(program: Program, watched: bool = True) -> dict[str, Any]:
    """The result of one program. Not watched: only whether it runs through."""
    with Stage(program.name) as stage:
        stage.crash_expected = True
        path = stage.home / f"{program.name}.py"
        path.write_text(program.text)
        mpirun = str(Path(sys.executable).with_name("mpirun"))
        command = [mpirun, "--oversubscribe", "--allow-run-as-root", "-n", str(program.row.world)]
        environment = stage.environment(watched)
        command += [sys.executable, str(path)]
        process = stage.start(command, environment, stage.output(0))
        try:
            asked = _followed(stage, process, program, environment if watched else None)
        finally:
            hangs = process.poll() is None
            _end(process)
        said = stage.output(0).read_text(errors="replace")
    findings = [finding for answer in asked for finding in answer]
    # The temporary folder is of no interest to who reads the results.
    findings = json.loads(json.dumps(findings).replace(f"{stage.home}/", ""))
    code = process.returncode
    return {
        "name": program.name,
        "cell": program.row.cell,
        "faulty": program.faulty,
        "expected": [program.row.family, program.row.ranks, list(program.lines)],
        "verdict": _judged(program, findings, code, said),
        "findings": _plain(findings),
        "hangs": hangs,
        "exit_code": code,
        "load": round(os.getloadavg()[0], 1),
    }


def _followed(
    stage: Stage,
    process: subprocess.Popen[bytes],
    program: Program,
    environment: dict[str, str] | None,
) -> list[list[dict[str, Any]]]:
    """The answers to each question. Without an environment nobody is asked."""
    _until(lambda: "begun" in stage.output(0).read_text(errors="replace"), process, BEGINS_S)
    answers = []
    if program.faulty and environment is None:
        _until(lambda: False, process, EFFECT_S)
    elif program.faulty:
        time.sleep(ASKED_AFTER_S)
    elif environment is not None:
        time.sleep(WHILE_S)
        answers.append(_asked(program.name, environment))
    if not program.faulty:
        _until(lambda: False, process, ENDS_S)
    if environment is not None:
        answers.append(_asked(program.name, environment))
    return answers


def _until(ready: Any, process: subprocess.Popen[bytes], seconds: float) -> None:
    """Until that is so, or the job has ended, or for so long."""
    until = time.monotonic() + seconds
    while not ready() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)


def _asked(job: str, environment: dict[str, str]) -> list[dict[str, Any]]:
    words = [sys.executable, "-m", "ddtop", "diagnose", job, "--json"]
    kept = {name: value for name, value in environment.items() if name != "DDTOP"}
    done = subprocess.run(
        words, env=kept, capture_output=True, text=True, timeout=ANSWERS_S, check=False
    )
    try:
        found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    except (ValueError, KeyError):
        return [_no_answer(f"{done.stdout[-200:]} {done.stderr[-300:]}")]
    return found


def _no_answer(text: str) -> dict[str, Any]:
    """No answer is a miss: as a warning it also counts against a correct program."""
    named = {"kind": "no-answer", "severity": "warning", "ranks": []}
    return {**named, "summary": text, "evidence": [], "advice": ""}


def _end(process: subprocess.Popen[bytes]) -> None:
    """mpirun ends its ranks and its folders; the stage ends what is then left."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5.0)


def _judged(program: Program, findings: list[dict[str, Any]], code: int | None, said: str) -> str:
    if "begun" not in said and "Traceback" not in said:
        return "did not start"
    if program.faulty and code == 0:
        return "ran through"
    if not program.faulty and code != 0:
        return "failed itself"
    return verdict(program, findings)


def _plain(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is kept of the findings, each once."""
    keys = ("kind", "severity", "ranks", "summary", "evidence")
    kept = [{key: one[key] for key in keys} for one in findings]
    return [one for at, one in enumerate(kept) if one not in kept[:at]]
