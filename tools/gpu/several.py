"""The parts that need several ranks under NCCL; on a machine with one GPU they share it.

NCCL 2.30.3 and later accept several ranks on one GPU when `NCCL_MULTI_RANK_GPU_ENABLE=1` is set.
Where torch brings an older one, `DDTOP_CHECK_NCCL` names the `libnccl.so.2` that the jobs load
instead (`pip download nvidia-nccl-cu13`). `DDTOP_CHECK_CASES` names the faults, or the healthy
programs, that are run.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.gpu.stage import Job, claim, job, say, skip, smi_processes, told

LIBRARY, CASES = "DDTOP_CHECK_NCCL", "DDTOP_CHECK_CASES"
AT_ONCE = 3


@dataclass(frozen=True)
class Case:
    """A fault, and what ddtop should say of it."""

    name: str
    kinds: tuple[str, ...]
    ranks: tuple[int, ...]
    place: str = ""
    world_size: int = 3
    seconds: float = 25


FAULTS = (
    Case("sleeps", ("not-in-collective",), (1,), "fetch_metrics"),
    Case("connect", ("not-in-collective",), (2,), "fetch_metrics"),
    Case("computes", ("not-in-collective",), (1,), "tokenize_for_ever"),
    Case("skipped", ("collective-mismatch", "not-in-collective", "no-progress"), (1,)),
    Case("other_call", ("collective-mismatch",), (1,)),
    Case("stopped", ("rank-stopped",), (1,)),
    Case("killed", ("rank-killed",), (1,)),
    Case("early", ("left-early",), (1,)),
    Case("loader", ("loader-stuck",), (1,)),
    Case("again", ("not-in-collective",), (1,), "fetch_metrics"),
    Case("subgroup", ("not-in-collective",), (3,), "fetch_metrics", world_size=4),
    Case("receive", ("unmatched-p2p",), (0,), seconds=40),
    Case("graph", ("not-in-collective", "no-progress"), (1,), "fetch_metrics", seconds=60),
    Case("differs", ("calls-differ",), (1,), "differs", seconds=40),
    Case("drifts", ("diverged",), (1,), seconds=40),
    Case("card", ("not-in-collective", "collective-stuck", "no-progress"), (1,), seconds=40),
)
_PORT = 28100


def _environment(number: int) -> dict[str, str]:
    # Each job has its own status service.
    found = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_RAS_ADDR": f"localhost:{_PORT + number}"}
    library = os.environ.get(LIBRARY)
    return {**found, **({"LD_PRELOAD": library} if library else {})}


def _taken() -> bool:
    """Whether a job of two ranks trains at all. Prints the reason if not."""
    if LIBRARY in os.environ and not Path(os.environ[LIBRARY]).is_file():
        claim(f"{LIBRARY} names a file", False, os.environ[LIBRARY])
        return False
    with job("gpu-several", 2, "several.py", "sleeps", environment=_environment(99)) as one:
        if one.until_says("TRAINS", 45):
            return True
        skip("several ranks on one card", one.output(1).strip()[-400:])
        return False


def _wanted(*names: str) -> list[str]:
    """All, or those in `DDTOP_CHECK_CASES`."""
    asked = os.environ.get(CASES, "")
    return [name for name in names if not asked or name in asked.split(",")]


def several() -> None:
    """Faults under NCCL with three or four ranks: which rank is named, how, and how soon."""
    if not _taken():
        return
    wanted = _wanted(*(one.name for one in FAULTS))
    cases = [one for one in FAULTS if one.name in wanted]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for lines in pool.map(_fault, range(len(cases)), cases):
            for line in lines:
                print(line, flush=True)


def _fault(number: int, case: Case) -> list[str]:
    with job(
        f"several-{case.name}",
        case.world_size,
        "several.py",
        case.name,
        environment=_environment(number),
    ) as one:
        if not one.until_says("TRAINS", 70):
            return [f"FAIL {case.name}: did not train: {one.output(1).strip()[-300:]}"]
        before = _memory(one)
        if not one.until_says("FAULT", 60):
            return [f"FAIL {case.name}: came to no fault: {one.output(1).strip()[-300:]}"]
        began = float(one.until_says("FAULT", 1).split()[-1])
        found, seen, seconds = _named(one, case, began)
        after = _memory(one)
        right = (
            found is not None and tuple(found["ranks"]) == case.ranks and case.place in str(found)
        )
        lines = [
            f"{'PASS' if right else 'FAIL'} {case.name}: {told(found)}; after {seconds:.1f} s",
            *(f"      {case.name} also: {what} after {when:.1f} s" for what, when in seen.items()),
        ]
        lines.append(f"      {case.name}: GPU memory by rank before {before}, after {after}")
        ranks = [
            (
                rank.get("rank"),
                rank.get("state"),
                rank.get("collective"),
                (rank.get("place") or {}).get("function"),
                (rank.get("place") or {}).get("waits_on"),
                rank.get("nccl"),
            )
            for rank in one.ranks()
        ]
        lines += [f"      {case.name} {rank}" for rank in ranks]
        return [*lines, *(f"      {case.name} {line}" for line in one.lines_with("RAW"))]


def _named(
    one: Job, case: Case, began: float
) -> tuple[dict[str, Any] | None, dict[str, float], float]:
    """The first finding of the kinds of this case, all other findings with the seconds since the
    fault, and the seconds of the first.
    """
    seen: dict[str, float] = {}
    best: dict[str, Any] | None = None
    while time.time() - began < case.seconds:
        for finding in one.findings():
            seen.setdefault(told(finding), time.time() - began)
            if finding["kind"] in case.kinds and (
                best is None or finding["severity"] == "critical" != best["severity"]
            ):
                best = dict(finding)
        if best is not None and best["severity"] == "critical":
            break
        time.sleep(0.3)
    seconds = seen.get(told(best), case.seconds) if best is not None else case.seconds
    return best, seen, seconds


def _memory(one: Job) -> dict[int, int | None]:
    listed = smi_processes()
    return {rank["rank"]: listed.get(rank["pid"]) for rank in one.ranks()}


def quiet() -> None:
    """Healthy trainings of several ranks under NCCL: there is no finding."""
    if not _taken():
        return
    names = _wanted("healthy", "evaluates", "replays")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for lines in pool.map(_healthy, range(50, 50 + len(names)), names):
            for line in lines:
                print(line, flush=True)


def _healthy(number: int, name: str) -> list[str]:
    with job(f"several-{name}", 3, "several.py", name, environment=_environment(number)) as one:
        if not one.until_says("TRAINS", 70):
            return [f"FAIL {name}: did not train: {one.output(1).strip()[-300:]}"]
        began, said = time.monotonic(), {}
        while time.monotonic() - began < (75 if name == "replays" else 35):
            for finding in one.findings():
                said.setdefault(told(finding), time.monotonic() - began)
            time.sleep(0.5)
        expected = {what for what in said if what.startswith("gpu-shared (warning")}
        ranks = [
            (rank.get("rank"), rank.get("state"), rank.get("iteration"), rank.get("nccl"))
            for rank in one.ranks()
        ]
        return [
            f"{'PASS' if set(said) == expected else 'FAIL'} {name}: nothing but the shared card is"
            f" said: {said}",
            *(f"      {name} {rank}" for rank in ranks),
            *(f"      {name} {line}" for line in one.lines_with("STEPS")),
        ]


def ended() -> None:
    """NCCL's watchdog ends the ranks that waited. The rank that had not joined is named, live and
    from the recording.
    """
    if not _taken():
        return
    environment = {**_environment(60), "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
    with job("several-ended", 3, "several.py", "times_out", environment=environment) as one:
        if not one.until_says("FAULT", 90):
            claim("the fault comes", False, one.output(1).strip()[-300:])
            return
        one.output(120)
        time.sleep(2)
        found = one.findings()
    for finding in found:
        say(told(finding))
    named = [finding for finding in found if finding["ranks"] == [1]]
    claim("the rank that had not come is named", bool(named), told((found or [None])[0]))


OUTSIDE = (("sleeps", "fetch_metrics"), ("connect", "fetch_metrics"), ("loader", "__next__"))


def outside() -> None:
    """Jobs that were started without ddtop and hang inside NCCL, and a healthy one: the verdicts
    from outside.
    """
    if not _taken():
        return
    cases = [case for case in (*OUTSIDE, ("healthy", "")) if case[0] in _wanted(case[0])]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for lines in pool.map(_asked, range(70, 70 + len(cases)), cases):
            for line in lines:
                print(line, flush=True)


def _asked(number: int, case: tuple[str, str]) -> list[str]:
    name, place = case
    lines: list[str] = []
    with job(
        f"outside-{name}", 3, "several.py", name, watched=False, environment=_environment(number)
    ) as one:
        if not one.until_says("FAULT" if place else "TRAINS", 90):
            return [f"FAIL outside, {name}: did not come to it: {one.output(1).strip()[-300:]}"]
        for pause in (8, 8):
            time.sleep(pause)
            began = time.monotonic()
            done = one.command("diagnose", "--pid", str(one.pid), seconds=60)
            took = time.monotonic() - began
            right = (
                done.returncode == 1 and _names(name) in done.stdout and place in done.stdout
                if place
                else done.returncode == 0
            )
            lines.append(
                f"{'PASS' if right else 'FAIL'} outside, {name}: exit code {done.returncode} after"
                f" {took:.1f} s"
            )
            lines += [f"      {line}" for line in (done.stdout + done.stderr).splitlines()[:25]]
    return lines


def _names(name: str) -> str:
    """The rank at fault."""
    return f"rank {next(case.ranks[0] for case in FAULTS if case.name == name)}"
