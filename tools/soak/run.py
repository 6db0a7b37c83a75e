"""One soak, from the start of the training to the table."""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from pathlib import Path

from tools.benchmarks import table
from tools.soak import growth
from tools.soak.growth import Life
from tools.soak.hosts import Stage, processes_of, ranks_of, sockets_of
from tools.soak.trouble import Trouble
from tools.soak.viewers import Viewers, shown

LOOK_S, TURN_S = 5.0, 0.1
LINGER_S = 15
RANK_MIB, RANK_COUNT = 1.0, 0
LONG_MIN, RANK_SHORT_MIB = 10.0, 4.0
"""In a few minutes torch's own caches are still growing."""
HISTORY_MIB, RELAY_COUNT, RELAY_MIB = 16.0, 4, 60.0
"""A relay's history fills for 25 minutes (its own limit), and all of a relay stays below the
second. Descriptors of a relay are viewers that are there.
"""
START_S, END_S = 120.0, 180.0


class Soak:
    """One run. `trouble` begins when all ranks report."""

    def __init__(self, stage: Stage, options: argparse.Namespace) -> None:
        self.stage, self.options, self.seconds = stage, options, options.minutes * 60
        self.losses = stage.folder / "losses"
        self.viewers = Viewers(stage.hosts, options.seed)
        self.trouble = Trouble(stage, self.seconds, options.kill_every)
        self.relays = [Life(f"relay of {host.name}") for host in stage.hosts]
        self.ranks: dict[int, Life] = {}
        self.seen: set[int] = set()
        self.began = 0.0

    @property
    def now_s(self) -> float:
        """Seconds since the training began."""
        return time.monotonic() - self.began

    def run(self) -> list[table.Row]:
        """Run everything. Returns the rows of the table."""
        self.stage.train(self.losses, self.seconds)
        self._until_it_trains()
        self.began = time.monotonic()
        look_s = 0.0
        while not self._over() and self.now_s < self.seconds + END_S:
            self.trouble.on_time(self.now_s)
            self.viewers.on_time(self.now_s)
            if self.now_s >= look_s:
                look_s = self.now_s + LOOK_S
                self.look()
            time.sleep(TURN_S)
        self.trouble.end()
        self.viewers.close()
        codes, finished = self._ends()
        rows = [self._training(codes, finished), *self._left(), self._curve()]
        return [*rows[:1], rows[-1], *self._happened(), *rows[1:-1], *self._grown()]

    def _until_it_trains(self) -> None:
        end = time.monotonic() + START_S
        while time.monotonic() < end and not self._over():
            if self.losses.exists() and self.losses.stat().st_size:
                return
            time.sleep(TURN_S)

    def _over(self) -> bool:
        return all(
            process.poll() is not None for host in self.stage.hosts for process in host.launched()
        )

    def _ends(self) -> tuple[list[int | None], int]:
        """(exit codes of the launchers, ranks that finished)."""
        both = [(host, one) for host in self.stage.hosts for one in host.launched()]
        finished = sum(host.output(one)[0].count("finished") for host, one in both)
        return [one.poll() for _, one in both], finished

    def look(self) -> None:
        """What relays and ranks use now."""
        for host, life in zip(self.stage.hosts, self.relays, strict=True):
            for pid in processes_of(host, b"ddtop.relay"):
                life.look(pid, self.now_s)
            for pid in ranks_of(host):
                self.ranks.setdefault(pid, Life(f"rank {pid} on {host.name}")).look(pid, self.now_s)
            self.seen |= host.pids()

    # -- the table

    def _training(self, codes: list[int | None], finished: int) -> table.Row:
        ranks = self.options.ranks
        done = finished == ranks and not any(codes)
        wrote = (
            []
            if done
            else [
                host.output(one)[1][-1500:] for host in self.stage.hosts for one in host.launched()
            ]
        )
        return table.Row(
            "training",
            f"{finished} of {ranks} ranks finished",
            f"{ranks}",
            done,
            "\n".join([f"exit codes {codes}", *wrote]),
        )

    def _curve(self) -> table.Row:
        """Whether the same training has the same losses without ddtop and without disturbances."""
        watched = self.losses.read_text().splitlines() if self.losses.exists() else []
        calm = self.stage.folder / "losses-without"
        for host in self.stage.hosts:
            host.environment.pop("LD_PRELOAD", None)
        if watched:
            self.stage.train(calm, 0.0, len(watched), ddtop=False)
            end = time.monotonic() + self.seconds + END_S
            while time.monotonic() < end and not self._over():
                time.sleep(TURN_S)
        without = calm.read_text().splitlines() if calm.exists() else []
        same = sum(a == b for a, b in itertools.zip_longest(watched, without))
        count = len(watched)
        detail = f"first {watched[0]}, last {watched[-1]}" if watched else "no step was made"
        return table.Row(
            "losses that are the same to the last bit without ddtop",
            f"{same} of {count}",
            "all",
            bool(watched) and same == count == len(without),
            detail,
        )

    def _happened(self) -> list[table.Row]:
        trouble, viewers = self.trouble, self.viewers
        clock = f"{trouble.times_back} times" if self.stage.clocks else "not done"
        why = "" if self.stage.clocks else "no C compiler is here for tools/soak/programs/clock.c"
        answered = viewers.codes.get(0, 0) + viewers.codes.get(1, 0)
        failed = viewers.failed
        return [
            table.Row("relays killed", str(trouble.kills)),
            table.Row("cable of the hub cut", f"{trouble.cuts} times"),
            table.Row("disk of the state folder full", f"{trouble.times_full} times"),
            table.Row("clock of a host set back", clock, detail=why),
            table.Row(
                "stacks that came",
                f"{answered} of {sum(viewers.codes.values())}",
                detail=", ".join(
                    shown({f"exit code {code}": n for code, n in viewers.codes.items()})
                ),
            ),
            table.Row(
                "other viewers that came", str(viewers.came), detail=", ".join(shown(viewers.told))
            ),
            table.limited(
                "viewers that did not end as they should", len(failed), 0, "", "\n".join(failed), 0
            ),
        ]

    def _left(self) -> list[table.Row]:
        """What is left behind when the relays' linger time is over."""
        end = time.monotonic() + LINGER_S + 30
        hosts = self.stage.hosts
        while time.monotonic() < end and any(host.pids() for host in hosts):
            time.sleep(0.2)
        processes = [str(pid) for host in hosts for pid in host.pids()]
        sockets = [line for host in hosts for line in sockets_of(host)]
        files = [
            str(path) for host in hosts for path in [*host.home.runtime.iterdir(), *host.pages()]
        ]
        files += [str(path) for host in hosts for path in _temporary(host.environment["TMPDIR"])]
        return [
            table.limited("processes left", len(processes), 0, "", "\n".join(processes), 0),
            table.limited("sockets left", len(sockets), 0, "", "\n".join(sockets), 0),
            table.limited("files left", len(files), 0, "", "\n".join(files), 0),
        ]

    def _grown(self) -> list[table.Row]:
        rows = []
        for life in self.relays:
            most = max((use.private_mib for use in life.uses), default=float("inf"))
            rows.append(
                table.limited(f"{life.what}: private memory", most, RELAY_MIB, "MiB", digits=1)
            )
        if len(self.relays) > 1 and self.options.minutes >= LONG_MIN:
            what = f"{self.relays[-1].what}, never killed"
            rows += growth.rows(what, [self.relays[-1]], HISTORY_MIB, RELAY_COUNT)
        limit_mib = RANK_MIB if self.options.minutes >= LONG_MIN else RANK_SHORT_MIB
        return rows + growth.rows("ranks", list(self.ranks.values()), limit_mib, RANK_COUNT)


def _temporary(folder: str) -> list[Path]:
    """Files in a folder for temporary files, without those of torch."""
    path = Path(folder)
    known = ("torchinductor", "torchelastic", "torch", "out", "err", "orders")
    return (
        [one for one in path.iterdir() if not one.name.startswith(known)] if path.exists() else []
    )


def soak(options: argparse.Namespace) -> list[table.Row]:
    """Run one and end all that it started."""
    with tempfile.TemporaryDirectory(prefix="ddsoak-") as folder:
        stage = Stage(Path(folder), options.ranks, options.hosts, LINGER_S)
        try:
            return Soak(stage, options).run()
        finally:
            stage.close()
