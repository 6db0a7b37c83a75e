"""`python -m tests.soak --minutes 30`: a training of eight ranks on two hosts that is not left in
peace, and what it cost.

Viewers come and go (dashboards, `watch`, `diagnose`; they leave politely, are killed, or stop
reading for a while), and every minute a relay is killed, of each host in turn but the last: there
memory is followed over the whole time. At the end the training must have finished, no process,
page, socket or lock may be left, and the memory and descriptors of the last relay and of the ranks
may not have grown. By hand: it takes as long as it is told to. Needs torch; `--hosts 2` and more
need root (`tests.netns`). 0 if all bars were met, else 1.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pty
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests import netns
from tests.benchmarks import table
from tests.benchmarks.procfs import memory_mib
from tests.conftest import Home
from tests.end_to_end.conftest import World
from tests.netns import Host, Net

LOOK_S, VIEWER_EVERY_S, KILL_EVERY_S = 5.0, 4.0, 60.0
VIEWERS_MAX = 3
LINGER_S = 15
SETTLED = 0.25
"""What grows in the first quarter is caches and history filling up."""
GROWTH_MIB, GROWTH_FDS = 4.0, 4
"""What a process may have grown after that: the noise of an allocator."""
HISTORY_MIB, RELAY_MIB = 12.0, 60.0
"""A relay's history fills for 25 minutes (its own limit), and all of a relay stays below the
second.
"""
CALM_S = 15.0
"""Before the training ends no relay is killed."""
LOOKS_MIN = 8
END_S = 120.0


@dataclass
class Seen:
    """One process over time: (seconds since the start, private MiB, open descriptors)."""

    what: str
    looks: list[tuple[float, float, int]] = field(default_factory=list)

    def look(self, pid: int, now_s: float) -> None:
        with contextlib.suppress(OSError, KeyError):
            self.looks.append(
                (now_s, memory_mib(pid)["private"], len(os.listdir(f"/proc/{pid}/fd")))
            )


class OneHost(World):
    """This one, as a host of one job."""

    name = "this host"
    inside: tuple[str, ...] = ()

    def pids(self) -> set[int]:
        """All living processes of the job."""
        return self.processes()

    def launched(self) -> list[subprocess.Popen[bytes]]:
        """What was started here, in order."""
        return list(self._started)


AnyHost = Host | OneHost


class Viewers:
    """Who looks, and how long."""

    def __init__(self, hosts: list[AnyHost], seed: int) -> None:
        self._hosts, self._random = hosts, random.Random(seed)
        self._there: list[tuple[float, subprocess.Popen[bytes]]] = []
        self.came = 0
        self.failed: list[str] = []
        self._next_s = 0.0

    def on_time(self, now_s: float) -> None:
        """Some go, somebody comes, somebody falls asleep."""
        for until_s, process in list(self._there):
            if process.poll() is not None or now_s > until_s:
                self._leave(until_s, process)
        if now_s >= self._next_s and len(self._there) < VIEWERS_MAX:
            self._next_s = now_s + self._random.expovariate(1 / VIEWER_EVERY_S)
            self._come(now_s)

    def _come(self, now_s: float) -> None:
        host = self._random.choice(self._hosts)
        words = self._random.choice(
            (["attach"], ["watch", "--json"], ["diagnose", "--json", "--for", "3"])
        )
        process = _on_terminal(host, [sys.executable, "-m", "ddtop", *words])
        self._there.append((now_s + self._random.uniform(2, 40), process))
        self.came += 1
        if self._random.random() < 0.2:
            process.send_signal(signal.SIGSTOP)

    def _leave(self, until_s: float, process: subprocess.Popen[bytes]) -> None:
        code = process.poll()
        what = " ".join(map(str, process.args[-4:])) if isinstance(process.args, list) else ""
        if code is None:
            told = self._random.choice(
                (signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGHUP)
            )
            process.send_signal(signal.SIGCONT)
            process.send_signal(told)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                self.failed.append(f"{what}: still there 10 s after {told.name}")
                process.kill()
                process.wait()
        elif code not in (0, 1, 3):
            self.failed.append(f"{what}: exit code {code}")
        self._there.remove((until_s, process))

    def close(self) -> None:
        """All leave."""
        for until_s, process in list(self._there):
            self._leave(until_s, process)


def _on_terminal(host: AnyHost, command: list[str]) -> subprocess.Popen[bytes]:
    """A command on a terminal of its own, whose other end takes all that is drawn."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [*host.inside, *command],
        env=host.environment | {"TERM": "xterm-256color"},
        cwd=host.folder,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)

    def take() -> None:
        with contextlib.suppress(OSError):
            while os.read(master, 1 << 16):
                pass
        os.close(master)

    threading.Thread(target=take, daemon=True).start()
    return process


class Soak:
    """One run."""

    def __init__(
        self, hosts: list[AnyHost], start: Callable[[], None], options: argparse.Namespace
    ) -> None:
        self.hosts, self.start, self.options = hosts, start, options
        self.viewers = Viewers(hosts, options.seed)
        self.relays = [Seen(f"relay of {host.name}") for host in hosts]
        self.ranks: dict[int, Seen] = {}
        self.kills = 0
        self.began = time.monotonic()

    @property
    def now_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began

    def run(self) -> list[table.Row]:
        """All of it; the rows of the table."""
        self.start()
        deadline_s = self.options.minutes * 60 + END_S
        look_s, kill_s = 0.0, self.options.kill_every
        while any(process.poll() is None for host in self.hosts for process in host.launched()):
            if self.now_s > deadline_s:
                break
            self.viewers.on_time(self.now_s)
            if self.now_s >= look_s:
                look_s = self.now_s + LOOK_S
                self.look()
            # After the last rank nobody would start another.
            if self.now_s >= kill_s and self.now_s < self.options.minutes * 60 - CALM_S:
                kill_s = self.now_s + self.options.kill_every
                self.kill_a_relay()
            time.sleep(0.1)
        codes = [process.poll() for host in self.hosts for process in host.launched()]
        finished = sum(
            host.output(process)[0].count("finished")
            for host in self.hosts
            for process in host.launched()
        )
        self.viewers.close()
        return self.rows(codes, finished, *self.left())

    def look(self) -> None:
        """Memory and descriptors now."""
        for host, seen in zip(self.hosts, self.relays, strict=True):
            for pid in _of(host, b"ddtop.relay"):
                seen.look(pid, self.now_s)
            for pid in _of(host, b"together.py"):
                if b"torch.distributed.run" not in _words(pid):
                    self.ranks.setdefault(pid, Seen(f"rank {pid} on {host.name}")).look(
                        pid, self.now_s
                    )

    def kill_a_relay(self) -> None:
        """Of each host in turn but the last, which is followed; with one host it is that one."""
        victims = self.hosts[:-1] or self.hosts
        for pid in _of(victims[self.kills % len(victims)], b"ddtop.relay")[:1]:
            os.kill(pid, signal.SIGKILL)
            self.kills += 1

    def left(self) -> tuple[list[str], list[str]]:
        """Processes and files that are still there when the relays' linger time is over."""
        end = time.monotonic() + LINGER_S + 30
        while time.monotonic() < end and any(_of(host, b"") for host in self.hosts):
            time.sleep(0.2)
        orphans = [
            b" ".join(_words(pid)).decode(errors="replace")
            for host in self.hosts
            for pid in _of(host, b"")
        ]
        files = [
            str(path)
            for host in self.hosts
            for path in [*host.home.runtime.iterdir(), *host.pages()]
        ]
        files += [
            path.read_text() for host in self.hosts for path in host.home.runtime.glob("*.log")
        ]
        return orphans, files

    def rows(
        self, codes: list[int | None], finished: int, orphans: list[str], files: list[str]
    ) -> list[table.Row]:
        """The table."""
        ranks = self.options.ranks
        done = finished == ranks and not any(codes)
        failed = self.viewers.failed
        rows = [
            table.Row(
                "training",
                f"{finished} of {ranks} ranks finished",
                f"{ranks}",
                done,
                f"exit codes {codes}",
            ),
            table.Row("relays killed", str(self.kills)),
            table.Row("viewers that came", str(self.viewers.came)),
            table.limited(
                "viewers that did not end as they should", len(failed), 0, "", "\n".join(failed), 0
            ),
            table.limited("orphans", len(orphans), 0, "", "\n".join(orphans), 0),
            table.limited("pages, sockets and locks left", len(files), 0, "", "\n".join(files), 0),
        ]
        for seen in self.relays:
            memory = [look[1] for look in seen.looks]
            rows.append(
                table.limited(
                    f"{seen.what}: memory",
                    max(memory, default=float("inf")),
                    RELAY_MIB,
                    "MiB",
                    digits=1,
                )
            )
        if len(self.hosts) > 1:
            rows += _growth(
                f"{self.relays[-1].what}, never killed", [self.relays[-1]], HISTORY_MIB + GROWTH_MIB
            )
        return rows + _growth("ranks", list(self.ranks.values()), GROWTH_MIB)


def _growth(what: str, lives: list[Seen], limit_mib: float) -> list[table.Row]:
    """Rows for memory and descriptors: the most that one process has grown after its first
    quarter.
    """
    mib, fds, series = [], [], []
    for seen in lives:
        looks = seen.looks
        if len(looks) < LOOKS_MIN:
            continue
        settled, last = (
            looks[int(len(looks) * SETTLED)],
            looks[-2],
        )  # In the very last it may be ending.
        mib.append(last[1] - settled[1])
        fds.append(last[2] - settled[2])
        shown = ", ".join(f"{look[1]:.1f}" for look in looks[:: max(1, len(looks) // 12)])
        series.append(f"{seen.what}: {shown} MiB")
    if not mib:
        return [
            table.missing(f"{what}: grown", "it was not there long enough", f"<= {limit_mib:g} MiB")
        ]
    return [
        table.limited(f"{what}: memory grown", max(mib), limit_mib, "MiB", "\n".join(series), 1),
        table.limited(f"{what}: descriptors grown", max(fds), GROWTH_FDS, "", digits=0),
    ]


def _of(host: AnyHost, word: bytes) -> list[int]:
    """Processes of that host whose command line has this word."""
    return sorted(pid for pid in host.pids() if any(word in one for one in _words(pid)))


def _words(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def main() -> int:
    """Run it and print the table."""
    # In a shell's background, or under nohup, these are ignored, and so they would be by the
    # viewers that are to leave by them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, lambda *_: None)
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--ranks", type=int, default=8, help="of all hosts together")
    parser.add_argument("--hosts", type=int, default=2 if netns.unable() is None else 1)
    parser.add_argument("--kill-every", type=float, default=KILL_EVERY_S, metavar="S")
    parser.add_argument("--seed", type=int, default=8)
    options = parser.parse_args()
    if options.hosts > 1 and (why := netns.unable()):
        parser.error(f"{why}; --hosts 1 needs none")
    if options.ranks % options.hosts:
        parser.error("every host has as many ranks: --ranks must be a multiple of --hosts")
    with tempfile.TemporaryDirectory(prefix="ddsoak-") as folder:
        words = [str(Path(folder) / "orders"), "all", str(options.minutes * 60)]
        net, hosts, start = _stage(Path(folder), options, words)
        try:
            rows = Soak(hosts, start, options).run()
        finally:
            for host in hosts:
                host.close()
            if net is not None:
                net.close()
    print(table.machine())
    print(table.shown(rows))
    return 1 if any(row.met is False for row in rows) else 0


def _stage(
    folder: Path, options: argparse.Namespace, words: list[str]
) -> tuple[Net | None, list[AnyHost], Callable[[], None]]:
    """(hosts in namespaces or None, the hosts, what starts the training)."""
    linger = {"DDTOP_LINGER_S": str(LINGER_S)}
    if options.hosts > 1:
        nodes = [f"node{number}" for number in range(options.hosts)]
        net = Net(folder / "net", nodes)
        hosts: list[AnyHost] = [net[name] for name in nodes]
        for host in hosts:
            host.environment |= linger
        return (
            net,
            hosts,
            lambda: net.torchrun(
                "together", *words, nodes=nodes, ranks=options.ranks // options.hosts
            ),
        )
    home = Home(folder / "state", folder / "run")
    home.runtime.mkdir(mode=0o700)
    os.environ["DDTOP_STATE"], os.environ["DDTOP_RUNTIME"] = str(home.state), str(home.runtime)
    (folder / "world").mkdir()
    alone = OneHost(home, folder / "world")
    alone.environment |= linger
    return None, [alone], lambda: [alone.torchrun("together", *words, ranks=options.ranks), None][1]


if __name__ == "__main__":
    sys.exit(main())
