"""Real programs of frameworks, healthy and with a fault: `python -m tests.frameworks`.

Each program (tests/frameworks/programs) runs twice under ddtop, with two ranks on CPUs: healthy for
`--healthy` seconds, in which no finding may stand, and with one fault, which must be named with its
rank. It prints a table in Markdown. It needs `pip install ddtop[frameworks]`; a framework that is
not there is left out, with a line that says so. With `--bits` each program makes 40 steps with and
without ddtop, and the results are compared bit by bit.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata, util
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent / "programs"
START_S, NAME_S = 300.0, 60.0
"""How long a program may take to begin to train (DeepSpeed compiles first), and ddtop to name its
fault."""
FAULT_AFTER_S = 12.0


@dataclass(frozen=True)
class Case:
    """One program. `needs`: its package. `source`: who must count its steps; None: nobody does.

    `launch`: torchrun starts it; False: it starts its ranks itself.
    """

    name: str
    program: str
    needs: str
    source: str | None
    fault: str = "sleep"
    launch: bool = True
    variables: dict[str, str] = field(default_factory=dict)


def _loop(mode: str, needs: str, source: str | None, **more: Any) -> Case:
    variables = {"MODE": mode, **more.pop("variables", {})}
    return Case(more.pop("name", mode), "own_loops.py", needs, source, variables=variables, **more)


CASES = (
    Case("HF Trainer", "hf_trainer.py", "transformers", "hf-trainer"),
    Case("Lightning, torchrun", "lightning_ddp.py", "lightning", "lightning"),
    Case("Lightning, its launcher", "lightning_ddp.py", "lightning", "lightning", launch=False),
    Case(
        "Lightning, ddp_spawn",
        "lightning_ddp.py",
        "lightning",
        "lightning",
        launch=False,
        variables={"STRATEGY": "ddp_spawn"},
    ),
    _loop("fabric", "lightning", "fabric", name="Fabric"),
    _loop("accelerate", "accelerate", "accelerate", fault="raise"),
    _loop("deepspeed", "deepspeed", "deepspeed", name="DeepSpeed ZeRO-1"),
    _loop(
        "deepspeed",
        "deepspeed",
        "deepspeed",
        name="DeepSpeed ZeRO-2",
        variables={"STAGE": "2"},
        fault="raise",
    ),
    _loop("ignite", "ignite", "ignite"),
    Case("Ray Train", "ray_train.py", "ray", "ray-train", launch=False),
    _loop("fsdp2", "torch", None, name="FSDP2"),
    _loop("tp", "torch", None, name="tensor parallel", fault="raise"),
    _loop("pipeline", "torch", None, name="pipeline 1F1B"),
)


class Run:
    """One program under ddtop, with folders of its own."""

    def __init__(self, case: Case, folder: Path, watched: bool = True, **variables: str) -> None:
        self.job = "fw"
        runtime, state = folder / "runtime", folder / "state"
        for made in (runtime, state):
            made.mkdir(mode=0o700)
        self.environ = {
            name: value for name, value in os.environ.items() if not name.startswith("DDTOP")
        }
        self.environ |= {
            "DDTOP_RUNTIME": str(runtime),
            "DDTOP_STATE": str(state),
            "DDTOP_JOB": self.job,
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "FAULT_AFTER_S": str(FAULT_AFTER_S),
            **case.variables,
            **variables,
        }
        command = [sys.executable, str(PROGRAMS / case.program)]
        if case.launch:
            launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
            command = [sys.executable, *launcher, command[1]]
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                env={**self.environ, **({"DDTOP": "1"} if watched else {})},
                cwd=PROGRAMS,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def ask(self, what: str) -> dict[str, Any]:
        """`ddtop status` or `ddtop diagnose` as JSON; empty if there is no job."""
        done = subprocess.run(
            [sys.executable, "-m", "ddtop", what, self.job, "--json"],
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        try:
            found: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            return {}
        return found

    def end(self) -> None:
        """End the processes of this program."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(10)

    def last_lines(self) -> str:
        """The end of what it printed."""
        return " / ".join(self.log.read_text(errors="replace").splitlines()[-3:])[-200:]


def healthy(case: Case, seconds: float) -> tuple[str, str]:
    """(what ddtop said in that time, who counted the steps and how far)."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(case, Path(folder))
        try:
            began = time.monotonic()
            while not _trains(run.ask("status")):
                if time.monotonic() - began > START_S or run.process.poll() is not None:
                    return f"did not train: {run.last_lines()}", "-"
                time.sleep(1)
            until, said = time.monotonic() + seconds, set()
            while time.monotonic() < until:
                for one in run.ask("diagnose").get("findings", []):
                    said.add(f"{one['severity']} {one['kind']}: {one['summary']}"[:120])
                time.sleep(1)
            told = run.ask("status")
            progress = told.get("progress") or {}
            counted = f"{progress.get('source')} {progress.get('step')}"
            wrong = progress.get("source") != case.source or told.get("probes_off")
            return "; ".join(sorted(said)) or "nothing", counted + (" WRONG" if wrong else "")
        finally:
            run.end()


def _trains(status: dict[str, Any]) -> bool:
    ranks = status.get("ranks", [])
    return len(ranks) == 2 and all((rank["iteration"] or 0) > 5 for rank in ranks)


def faulty(case: Case) -> str:
    """The finding that names rank 1, and how long after the fault it stood."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(case, Path(folder), FAULT=case.fault)
        try:
            began = time.monotonic()
            last: list[str] = []
            while time.monotonic() - began < START_S + NAME_S:
                found = run.ask("diagnose").get("findings", [])
                last = [f"{one['severity']} {one['kind']} {one['ranks']}" for one in found]
                if any(one["severity"] == "critical" and one["ranks"] == [1] for one in found):
                    return last[0]
                time.sleep(1)
            return f"MISSED ({'; '.join(last) or run.last_lines()})"
        finally:
            run.end()


def same_bits(case: Case) -> str:
    """`same` if 40 steps have the same result with and without ddtop."""
    found = []
    for watched in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            run = Run(case, Path(folder), watched, STEPS="40", FAULT_AFTER_S="9999")
            try:
                run.process.wait(START_S)
                lines = run.log.read_text(errors="replace").splitlines()
                found.append(
                    sorted({line.split("digest ")[1] for line in lines if "digest " in line})
                )
            except subprocess.TimeoutExpired:
                found.append([])
            finally:
                run.end()
    return "same" if found[0] and found[0] == found[1] else f"DIFFERENT {found}"


def _version(package: str) -> str:
    names = {"ignite": "pytorch-ignite"}
    return f"{package} {metadata.version(names.get(package, package))}"


def main() -> None:
    """Run the programs and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--healthy", type=float, default=60.0, help="seconds")
    parser.add_argument("--only", help="a part of the name of a program")
    parser.add_argument("--bits", action="store_true", help="compare results with and without")
    chosen = parser.parse_args()
    # A `timeout` around this must not leave the programs behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    columns = ("result",) if chosen.bits else ("healthy: ddtop says", "steps", "fault", "found")
    print("| program | version |", " | ".join(columns), "|")
    print("|---|---|" + "---|" * len(columns))
    for case in CASES:
        if chosen.only and chosen.only.lower() not in case.name.lower():
            continue
        if util.find_spec(case.needs) is None:
            print(f"| {case.name} | not installed |" + " |" * len(columns), flush=True)
            continue
        cells: tuple[str, ...]
        if chosen.bits:
            cells = (same_bits(case),)
        else:
            cells = (*healthy(case, chosen.healthy), case.fault, faulty(case))
        print(f"| {case.name} | {_version(case.needs)} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
