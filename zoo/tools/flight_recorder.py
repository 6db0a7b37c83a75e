"""torch's flight recorder and the analyser that torch ships (torch.distributed.flight_recorder).

On gloo nothing dumps the recorder by itself, and TORCH_NCCL_DUMP_ON_TIMEOUT is NCCL's. So each rank
runs the worker server of `torch.distributed.debug`, which hands out the recorder without the GIL,
and torch's analyser reads the dumps of all ranks as torch's debug page does. gloo's recorder lacks
the members of the groups, without which the analyser fails; they are given to it, which is more
than a user gets. It assumes that nothing moves; so the recorder is read twice, two seconds apart,
and the analyser is asked only if a rank has made no progress between.

The reading: the first report of each group counts, and of several groups all ranks that are named,
which may be a cycle. "missing ranks" are ranks that did not join.
"Culprit rank" are ranks in another call; where more than half of a group are called culprits it is
the others, as the analyser's own comment says that it compares with the first rank.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tools.benchmarks.stage import Stage
from zoo.case import Case
from zoo.start import Started, start
from zoo.tool import Claim, Job, Look
from zoo.tools.asked import OVER, asked, processes

SERVER = Path(__file__).with_name("recorder_server")
ANALYSIS = Path(__file__).with_name("recorder_analysis.py")
ENTRIES = "2000"
BETWEEN_S, ANSWER_S = 2.0, 5.0
MISSING = frozenset({"not-in-collective", "loader-stuck", "interpreter-frozen", "left-early"})
MISSING |= {"rank-stopped"}
OTHER_CALL = frozenset({"collective-mismatch", "wait-cycle", "unmatched-p2p"})
OTHER_STATE = frozenset({"not-in-collective", "collective-stuck"})
KINDS = MISSING | OTHER_CALL | OTHER_STATE
_BLOCK = re.compile(
    r"^(Not all ranks joining collective, sequence number: \d+"
    r"|Collective sequence number: \d+ has errors"
    r"|Input/output mismatch in the collective sequence number: \d+)",
    re.MULTILINE,
)
_CULPRIT = re.compile(r"Culprit rank (\d+); Error type: (\w+)")


def claims(text: str) -> list[Claim]:
    """What a person reads in the analyser's log."""
    starts = [found.start() for found in _BLOCK.finditer(text)]
    found: dict[str, Claim] = {}
    for begin, end in zip(starts, [*starts, len(text)][1:], strict=True):
        block = text[begin:end]
        group = _line(block, "group info")
        if group in found:
            continue
        if (claim := _claim(block)) is not None:
            found[group] = claim
    if len(found) < 2:
        return list(found.values())
    kinds = frozenset().union(*(one.kinds for one in found.values())) | {"wait-cycle"}
    ranks = {rank for one in found.values() for rank in one.ranks}
    text = "; ".join(one.text for one in found.values())
    return [Claim(kinds, tuple(sorted(ranks)), "critical", text)]


def _claim(block: str) -> Claim | None:
    summary = f"{block.splitlines()[0]}, {_line(block, 'collective')}"
    if missing := _set(_line(block, "missing ranks")):
        ranks = tuple(sorted(missing))
        text = f"{summary}, missing ranks: {','.join(map(str, ranks))}"
        return Claim(MISSING, ranks, "critical", text)
    errors = _CULPRIT.findall(block)
    if not errors:
        return None
    culprits = {int(rank) for rank, _ in errors}
    members = _set(_line(block, "expected ranks"))
    if members and len(culprits) * 2 > len(members):
        culprits = members - culprits
    same_call = all(error == "COLLECTIVE_STATE_MISMATCH" for _, error in errors)
    text = f"{summary}, {_line(block, 'error msg')}"
    ranks = tuple(sorted(culprits))
    return Claim(OTHER_STATE if same_call else OTHER_CALL, ranks, "critical", text)


def _line(block: str, name: str) -> str:
    found = re.search(rf"^{name}: (.*)$", block, re.MULTILINE)
    return found[1] if found else ""


def _set(text: str) -> set[int]:
    return {int(one) for one in re.findall(r"\d+", text)}


class FlightRecorder:
    """Asked once."""

    name, live = "flight-recorder", False
    about = "torch's recorder and analyser, asked 8 s after the fault; it names no place"

    def missing(self) -> str:
        """Whether this torch has the analyser, and recorders of gloo that a server hands out."""
        words = "import torch.distributed.flight_recorder.components.builder\n"
        words += (
            "from torch._C._distributed_c10d import _get_handler\n_get_handler('fr_trace_json')"
        )
        done = subprocess.run([sys.executable, "-c", words], capture_output=True, check=False)
        return "" if done.returncode == 0 else "this torch has no analyser for gloo's recorder"

    def unable(self, case: Case) -> str:
        """It compares collectives. It knows no exits, no speeds and no data."""
        kinds = {kind for kind, _ in case.expected}
        return "" if not kinds or kinds & KINDS else "a recorder of collectives does not show it"

    def start(self, stage: Stage, case: Case, seed: int | None, launcher: str) -> Started:
        """With torch's server in each rank."""
        more = {
            "TORCH_FR_BUFFER_SIZE": ENTRIES,
            "ZOO_RECORDER": str(stage.home),
            "PYTHONPATH": str(SERVER),
        }
        return start(stage, case, seed, launcher, more)

    def looks(self, job: Job) -> Iterator[Look]:
        """One analysis."""
        return asked(job, lambda: _ask(job))


def _ask(job: Job) -> Look:
    if not processes(job.stage):
        return Look(time.time_ns(), unable=OVER)
    first = _dumps(job.stage)
    time.sleep(BETWEEN_S)
    second = _dumps(job.stage)
    if not second:
        return Look(time.time_ns(), unable=OVER if job.over else "no rank handed out its recorder")
    if all(_last(second[rank]) != _last(first.get(rank, {})) for rank in second):
        return Look(time.time_ns())
    with tempfile.TemporaryDirectory(prefix="zoo-fr-") as name:
        for rank, dump in second.items():
            Path(name, f"rank{rank}.json").write_text(json.dumps(dump))
        words = [sys.executable, str(ANALYSIS), name]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    found = tuple(claims(done.stderr))
    if done.returncode and not found:
        last = done.stderr.strip().splitlines()[-1:]
        return Look(time.time_ns(), unable=f"the analyser failed: {''.join(last)[:200]}")
    if not found and "we missed FR dumps" in done.stderr:
        return Look(time.time_ns(), unable="a rank did not hand out its recorder")
    return Look(time.time_ns(), found)


def _last(dump: Mapping[str, Any]) -> tuple[Any, ...]:
    entries = dump.get("entries") or [{}]
    return tuple((one.get("record_id"), one.get("state")) for one in entries[-4:])


def _dumps(stage: Stage) -> dict[int, dict[str, Any]]:
    """Rank -> what torch's handler `fr_trace_json` answers; without ranks that do not answer."""
    found = {}
    for path in sorted(stage.home.glob("recorder*.sock")):
        rank = int(path.stem.removeprefix("recorder"))
        try:
            dump = json.loads(_fetch(path))
            dump["pg_config"] = json.loads(path.with_suffix(".groups").read_text())
            found[rank] = dump
        except (OSError, ValueError, http.client.HTTPException):
            continue
    return found


def _fetch(path: Path) -> bytes:
    link = http.client.HTTPConnection("localhost", timeout=ANSWER_S)
    link.sock = socket.socket(socket.AF_UNIX)
    try:
        link.sock.settimeout(ANSWER_S)
        link.sock.connect(str(path))
        link.request("POST", "/handler/fr_trace_json", headers={"Content-Length": "0"})
        return link.getresponse().read()
    finally:
        link.close()
