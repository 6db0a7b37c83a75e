"""`python -m tools.recorded.record KEPT`: make the recordings anew.

KEPT is the state folder of jobs that have ended, such as those of `ddtop demo`. What names the
machine is taken out of their frames. To them come simulated jobs. With `--zoo`, KEPT is what
`python -m zoo --keep KEPT` has kept, and all of it is packed.
"""

from __future__ import annotations

import argparse
import os
import tarfile
import tempfile
from pathlib import Path

from ddtop import journal, registry
from ddtop.sim.incidents import SCENARIOS
from ddtop.sim.job import SimulatedJob
from ddtop.wire import frames
from tools.recorded.neutral import HOST, SENDER, Neutral

JOBS, ZOO = (Path(__file__).with_name(name) for name in ("jobs.tar.xz", "zoo.tar.xz"))
NOW_UNIX_S = 1_795_694_400
"""The time of each command: 2026-11-26 12:00 UTC, after the last record."""
BEGAN_UNIX_NS = (NOW_UNIX_S - 3600) * 1_000_000_000
WATCHED_S, GPUS_WATCHED_S = 25, 55
"""How long a simulated job is watched: its incident comes after 10 s, that of a GPU after 40 s."""
RANKS = 16


def simulated(scenario: str) -> list[bytes]:
    """The frames of a job that begins a little before it is watched."""
    job = SimulatedJob(RANKS, 7, SCENARIOS[scenario], began_unix_ns=BEGAN_UNIX_NS)
    seconds = GPUS_WATCHED_S if "gpu" in scenario else WATCHED_S
    until = BEGAN_UNIX_NS + seconds * 1_000_000_000
    return [*job.joining(BEGAN_UNIX_NS), *job.frames(BEGAN_UNIX_NS, until)]


def keep(name: str, found: list[bytes], reason: str, world_size: int) -> None:
    """Write the files of an ended job into this process's state folder."""
    times = [frames.open_envelope(data).unix_ns for data in found]
    entry = registry.JobEntry(
        registry.SCHEMA, name, "r1", HOST, SENDER, 1, 1, "127.0.0.1", 1, "/run/ddtop/none.link",
        "train.py", world_size, world_size, times[0], times[-1], times[-1], reason,
    )  # fmt: skip
    registry.write_entry(entry)
    journal.write(registry.journal_path(name, "r1", SENDER), found)


def pack(archive: Path, folder: Path, name: str) -> None:
    """Write the files of a folder into an archive, in which the folder is called `name`. Nothing in
    it depends on who packs, or when.
    """

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = ""
        return info

    with tarfile.open(archive, "w:xz", preset=9) as packed:
        packed.add(folder, name, filter=plain)
    print(f"{archive}: {archive.stat().st_size} bytes")


def main() -> None:
    """Pack what is kept, and what is simulated."""
    parser = argparse.ArgumentParser(prog="python -m tools.recorded.record", description=__doc__)
    parser.add_argument("kept", type=Path)
    parser.add_argument("--machine", action="append", default=[], metavar="TEXT=REPLACEMENT")
    parser.add_argument("--zoo", action="store_true")
    options = parser.parse_args()
    if options.zoo:
        pack(ZOO, options.kept, "zoo")
        return
    neutral = Neutral(dict(one.split("=", 1) for one in options.machine))
    with tempfile.TemporaryDirectory() as home:
        os.environ["DDTOP_STATE"] = str(options.kept)
        ended = [
            (entry, list(journal.Reader(registry.journal_path(entry.job, entry.run, entry.sender))))
            for entry in registry.read_entries()
        ]
        os.environ["DDTOP_STATE"] = f"{home}/state"
        for entry, found in ended:
            name = entry.script.rpartition("/")[2].partition(".")[0] + "-" + entry.job
            reason = entry.ended_reason or "finished"
            keep(name, neutral.frames(found), reason, entry.world_size)
        for scenario in SCENARIOS:
            keep(f"sim-{scenario}", simulated(scenario), "finished", RANKS)
        pack(JOBS, Path(home, "state"), "state")


if __name__ == "__main__":
    main()
