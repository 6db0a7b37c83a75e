"""`python -m tools.recorded.record KEPT`: make the recordings anew.

KEPT is the state folder of jobs that have ended, such as those of `ddtop demo`. What names the
machine is taken out of their frames. To them come simulated jobs.
"""

from __future__ import annotations

import argparse
import os
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

import msgspec

from ddtop import journal, registry
from ddtop.sim.incidents import SCENARIOS
from ddtop.sim.job import SimulatedJob
from ddtop.wire import frames
from ddtop.wire.records import Hello, HostState

JOBS = Path(__file__).parent / "jobs.tar.xz"
NOW_UNIX_S = 1_795_694_400
"""The time of each command: 2026-11-26 12:00 UTC, after the last record."""
BEGAN_UNIX_NS = (NOW_UNIX_S - 3600) * 1_000_000_000
SENDER, HOST = "0" * 12, "node0"
WATCHED_S, GPUS_WATCHED_S = 25, 55
"""How long a simulated job is watched: its incident comes after 10 s, that of a GPU after 40 s."""
RANKS = 16


def simulated(scenario: str) -> list[bytes]:
    """The frames of a job that begins a little before it is watched."""
    job = SimulatedJob(RANKS, 7, SCENARIOS[scenario], began_unix_ns=BEGAN_UNIX_NS)
    seconds = GPUS_WATCHED_S if "gpu" in scenario else WATCHED_S
    until = BEGAN_UNIX_NS + seconds * 1_000_000_000
    return [*job.joining(BEGAN_UNIX_NS), *job.frames(BEGAN_UNIX_NS, until)]


def without_names(found: Iterable[bytes], machine: dict[str, str]) -> list[bytes]:
    """The frames without what names this machine: `machine` is text and its replacement."""
    kept = []
    for data in found:
        envelope = frames.open_envelope(data)
        record = frames.open_record(envelope)
        if isinstance(record, Hello):
            record = msgspec.structs.replace(record, environment={}, host=HOST)
        elif isinstance(record, HostState):
            load = record.load and msgspec.structs.replace(record.load, disks=())
            record = msgspec.structs.replace(record, host=HOST, load=load)
        told = _replaced(msgspec.msgpack.decode(msgspec.msgpack.encode(record)), machine)
        packed = msgspec.Raw(msgspec.msgpack.encode(told))
        kept.append(
            msgspec.msgpack.encode(msgspec.structs.replace(envelope, sender=SENDER, record=packed))
        )
    return kept


def _replaced(value: object, machine: dict[str, str]) -> object:
    if isinstance(value, str):
        for old, new in machine.items():
            value = value.replace(old, new)
        return value
    if isinstance(value, list):
        return [_replaced(one, machine) for one in value]
    if isinstance(value, dict):
        return {key: _replaced(one, machine) for key, one in value.items()}
    return value


def keep(name: str, found: list[bytes], reason: str, world_size: int) -> None:
    """Write the files of an ended job into this process's state folder."""
    times = [frames.open_envelope(data).unix_ns for data in found]
    entry = registry.JobEntry(
        registry.SCHEMA, name, "r1", HOST, SENDER, 1, 1, "127.0.0.1", 1, "/run/ddtop/none.link",
        "train.py", world_size, world_size, times[0], times[-1], times[-1], reason,
    )  # fmt: skip
    registry.write_entry(entry)
    journal.write(registry.journal_path(name, "r1", SENDER), found)


def main() -> None:
    """Pack what is kept, and what is simulated."""
    parser = argparse.ArgumentParser(prog="python -m tools.recorded.record", description=__doc__)
    parser.add_argument("kept", type=Path)
    parser.add_argument("--machine", action="append", default=[], metavar="TEXT=REPLACEMENT")
    options = parser.parse_args()
    machine = dict(one.split("=", 1) for one in options.machine) | {sys.prefix: "/usr"}
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
            keep(name, without_names(found, machine), reason, entry.world_size)
        for scenario in SCENARIOS:
            keep(f"sim-{scenario}", simulated(scenario), "finished", RANKS)
        with tarfile.open(JOBS, "w:xz", preset=9) as archive:
            archive.add(f"{home}/state", "state")
    print(f"{JOBS}: {JOBS.stat().st_size} bytes")


if __name__ == "__main__":
    main()
