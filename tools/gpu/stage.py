"""What the parts of the check share: the lines of the report, nvidia-smi, and watched jobs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent / "programs"
GIB = 1 << 30


def claim(what: str, holds: bool, seen: object = "") -> None:
    """A claim, and the observed value."""
    print(f"{'PASS' if holds else 'FAIL'} {what}: {seen}", flush=True)


def see(what: str, seen: object = "") -> None:
    """An observation that a reader has to judge."""
    print(f"SEEN {what}: {seen}", flush=True)


def skip(what: str, why: object) -> None:
    """A check that this machine cannot make."""
    print(f"SKIP {what}: {why}", flush=True)


def say(*words: object) -> None:
    """Additional information."""
    print("    ", *words, flush=True)


def smi(*words: str) -> str:
    """The output of nvidia-smi; empty if it refuses."""
    done = subprocess.run(
        ["nvidia-smi", *words], capture_output=True, text=True, check=False, timeout=30
    )
    return done.stdout if done.returncode == 0 else ""


def smi_cards(fields: list[str]) -> list[dict[str, str]]:
    """These fields of all GPUs by name. A field that this nvidia-smi does not know is left out."""
    found: list[dict[str, str]] = []
    text = smi(f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")
    for group in [fields] if text else [[field] for field in fields]:
        text = (
            text
            if len(group) > 1
            else smi(f"--query-gpu={group[0]}", "--format=csv,noheader,nounits")
        )
        for number, line in enumerate(text.splitlines()):
            if number == len(found):
                found.append({})
            found[number] |= dict(
                zip(group, [word.strip() for word in line.split(",")], strict=False)
            )
    return found


def smi_processes() -> dict[int, int | None]:
    """MiB by pid, of all GPUs; pids as the driver counts them."""
    text = smi("--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
    lines = [
        [word.strip() for word in line.split(",")] for line in text.splitlines() if "," in line
    ]
    return {int(pid): int(used) if used.isdigit() else None for pid, used in lines if pid.isdigit()}


@contextlib.contextmanager
def program(name: str, *words: object) -> Iterator[tuple[int, str]]:
    """An unwatched program that runs until its stdin closes: (its pid, its first line)."""
    command = [sys.executable, str(PROGRAMS / name), *map(str, words)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.pid, process.stdout.readline().strip()
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=10)
        process.kill()
        process.wait()


class Job:
    """A job under torchrun, with folders of its own; watched, or not. `DDTOP_CHECK_KEEP` names a
    folder for its recording.
    """

    def __init__(
        self,
        name: str,
        ranks: int,
        script: str,
        *words: object,
        watched: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self._folder = name, tempfile.mkdtemp(prefix="ddt-")
        self.environment = {
            key: value for key, value in os.environ.items() if not key.startswith("DDTOP")
        } | {
            "DDTOP_STATE": f"{self._folder}/state",
            "DDTOP_RUNTIME": f"{self._folder}/run",
            "DDTOP_JOB": name,
            "DDTOP_QUIET": "1",
            "DDTOP_LINGER_S": "5",
            "OMP_NUM_THREADS": "1",
            **({"DDTOP": "1"} if watched else {}),
            **(environment or {}),
        }
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={ranks}",
        ]
        self._process = subprocess.Popen(
            [*command, str(PROGRAMS / script), *map(str, words)],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: list[str] = []
        # A pipe without a reader would block the job.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        self._lines.extend(iter(self._process.stdout.readline, ""))

    @property
    def pid(self) -> int:
        """The pid of torchrun."""
        return self._process.pid

    def ddtop(self, *words: str, seconds: float = 40) -> Any:
        """The JSON of one command about this job."""
        done = self.command(*words, "--json", seconds=seconds)
        return (
            json.loads(done.stdout)
            if done.stdout.startswith("{")
            else {"error": done.stderr.strip()[-300:]}
        )

    def command(self, *words: str, seconds: float = 40) -> subprocess.CompletedProcess[str]:
        """One command of ddtop with this job's folders."""
        return subprocess.run(
            [sys.executable, "-m", "ddtop", *words],
            env=self.environment, capture_output=True, text=True, timeout=seconds, check=False,
        )  # fmt: skip

    def ranks(self) -> list[dict[str, Any]]:
        """The ranks in the JSON of `status`."""
        return list(self.ddtop("status", self.name).get("ranks", []))

    def until_says(self, word: str, seconds: float) -> str:
        """The line of its output with this word; empty if none comes."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = next((line for line in list(self._lines) if word in line), None)
            if found is not None:
                return found.strip()
            if self._process.poll() is not None and not self._reader.is_alive():
                break
            time.sleep(0.1)
        return ""

    def lines_with(self, word: str) -> list[str]:
        """The lines of its output so far that contain this word."""
        return [line.strip() for line in list(self._lines) if word in line]

    def findings(self) -> list[dict[str, Any]]:
        """The findings of `diagnose` now."""
        return list(self.ddtop("diagnose", self.name, "--for", "1").get("findings", []))

    def until(self, kinds: tuple[str, ...], seconds: float) -> tuple[dict[str, Any] | None, float]:
        """The first finding of these kinds, as soon as it appears, and after how many seconds."""
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            for finding in self.findings():
                if finding["kind"] in kinds:
                    return dict(finding), time.monotonic() - began
            time.sleep(0.3)
        return None, seconds

    def output(self, seconds: float) -> str:
        """All of its output, when it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
            self._reader.join(5)
        return "".join(self._lines)

    def close(self) -> None:
        """End it, keep its recording if that is wanted, and remove its folder."""
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
        if self._process.poll() is None:
            self._process.kill()
        keep = os.environ.get("DDTOP_CHECK_KEEP")
        if keep and Path(f"{self._folder}/state").is_dir():
            Path(keep).mkdir(parents=True, exist_ok=True)
            shutil.make_archive(f"{keep}/{self.name}", "gztar", f"{self._folder}/state")
        shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def job(
    name: str,
    ranks: int,
    script: str,
    *words: object,
    watched: bool = True,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Job]:
    """A job that runs while the block does."""
    one = Job(name, ranks, script, *words, watched=watched, environment=environment)
    try:
        yield one
    finally:
        one.close()


def told(finding: dict[str, Any] | None) -> str:
    """Kind, ranks and summary of a finding, in short."""
    if finding is None:
        return "nothing"
    return (
        f"{finding['kind']} ({finding['severity']}, ranks {finding['ranks']}): {finding['summary']}"
    )
