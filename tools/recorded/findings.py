"""`python -m tools.recorded.findings INTO [FOLDER]`: every finding of recorded jobs, at each half
second.

A change of the model or the diagnosis that should change no verdict changes no byte of it:

    git switch --detach BEFORE && python -m tools.recorded.findings /tmp/before
    git switch --detach AFTER && python -m tools.recorded.findings /tmp/after
    diff -r /tmp/before /tmp/after

FOLDER has journals, such as those of `python -m zoo --keep FOLDER`. Without it, those in the
repository are played (`zoo.tar.xz`, `jobs.tar.xz`). Each becomes a file. It has the lines that
differ from those of the half second before. A line without text is gone, and `= 7` stands for seven
half seconds without a change. All times are those of the recording. Two runs of one program are
never equal: compare one set of journals before and after.
"""

from __future__ import annotations

import argparse
import json
import os
import tarfile
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ddtop import journal
from ddtop.diagnosis.finding import Finding, Verdict
from ddtop.diagnosis.judge import STEP_NS
from ddtop.follow.engine import Follower
from ddtop.model.facts import Snapshot
from ddtop.present.now import now_text
from ddtop.wire import frames
from tools.recorded.record import JOBS, ZOO

AT_A_TIME = 2
INDENT = "    "


class Look(NamedTuple):
    """What a viewer saw at one half second. `began_unix_ns`: the first record."""

    began_unix_ns: int
    snapshot: Snapshot
    verdict: Verdict


def looks(path: Path) -> Iterator[Look]:
    """Every half second of a recording, for a viewer that follows the job from its start."""
    follower = Follower("", clock=lambda: 0)
    began = due = 0
    for data in journal.Reader(path):
        at = follower.job.on_hub_clock(frames.open_envelope(data))
        began = began or at
        due = due or began + STEP_NS
        while at > due:
            yield Look(began, *follower.look(due))
            due += STEP_NS
        follower.take(data)
    yield Look(began, *follower.look(due))


def lines(look: Look, with_now: bool = False) -> dict[str, str]:
    """What each line is about, and its text. The number of a finding is its place: the first one
    is the headline. `with_now`: also the NOW column and the state of each rank.
    """
    began, snapshot, verdict = look
    found = {"health": verdict.health}
    if not verdict.findings:
        found["calm"] = verdict.calm
    for number, finding in enumerate(verdict.findings, 1):
        found |= _of_finding(str(number), finding, began)
    for number, muted in enumerate(verdict.muted, 1):
        found |= _of_finding(f"muted {number}", muted.finding, began)
        found[f"muted {number} by"] = f"{muted.by.by}, {muted.by.because}"
    if with_now:
        found |= {
            f"rank {one.rank}": f"{one.state.value}: {now_text(one)}" for one in snapshot.ranks
        }
    return found


def _of_finding(name: str, finding: Finding, began_unix_ns: int) -> dict[str, str]:
    since_s = (finding.since_unix_ns - began_unix_ns) / 1e9
    found = {
        name: f"{finding.severity} {finding.kind}",
        f"{name} ranks": ",".join(map(str, finding.ranks)),
        f"{name} victims": ",".join(map(str, finding.victims)),
        f"{name} since": f"{since_s:.3f} s",
        f"{name} call": f"group {finding.group}, op {finding.op}, seq {finding.seq}",
        f"{name} summary": finding.summary,
    }
    for number, text in enumerate(finding.evidence, 1):
        found[f"{name} evidence {number}"] = text
    return found | {f"{name} advice": finding.advice}


def played(path: Path, with_now: bool = False) -> str:
    """All that changes in a recording."""
    text, before, same = [], dict[str, str](), 0
    for look in looks(path):
        current = lines(look, with_now)
        changed = {key: value for key, value in current.items() if before.get(key) != value}
        gone = [key for key in before if key not in current]
        if not changed and not gone:
            same += 1
            continue
        text += _unchanged(same)
        text.append(f"{(look.snapshot.time_unix_ns - look.began_unix_ns) / 1e9:.1f} s")
        # A line break in a text would look like another line.
        shown = {key: json.dumps(value, ensure_ascii=False) for key, value in changed.items()}
        text += [f"{INDENT}{key}: {value}" for key, value in shown.items()]
        text += [f"{INDENT}{key}" for key in gone]
        before, same = current, 0
    return "\n".join((*text, *_unchanged(same), ""))


def _unchanged(count: int) -> list[str]:
    return [f"= {count}"] if count else []


def unpacked(archive: Path, into: Path) -> list[Path]:
    """The journals of an archive, as files."""
    with tarfile.open(archive) as found:
        found.extractall(into, filter="data")
    return sorted(into.rglob("*.journal"))


def write(into: Path, with_now: bool, path: Path) -> None:
    """Play a journal into a file of the same name."""
    (into / path.stem).write_text(played(path, with_now), encoding="utf-8")


def main() -> None:
    """Play all."""
    parser = argparse.ArgumentParser(prog="python -m tools.recorded.findings", description=__doc__)
    parser.add_argument("into", type=Path)
    parser.add_argument("folder", type=Path, nargs="?")
    text = "also the NOW column and the state of each rank"
    parser.add_argument("--now", action="store_true", help=text)
    given = parser.parse_args()
    given.into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home, ProcessPoolExecutor(AT_A_TIME) as pool:
        if given.folder:
            journals = sorted(given.folder.rglob("*.journal"))
        else:
            journals = [
                *unpacked(ZOO, Path(home, "zoo")),
                *unpacked(JOBS, Path(home, "jobs")),
            ]
        if not journals:
            parser.error(f"there is no journal in {given.folder}; python -m zoo --keep makes some")
        list(pool.map(partial(write, given.into, given.now), journals))
    print(f"{len(journals)} files in {given.into}")


if __name__ == "__main__":
    # A finding may say when, in local time.
    os.environ["TZ"] = "UTC"
    time.tzset()
    main()
