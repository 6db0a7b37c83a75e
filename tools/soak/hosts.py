"""The hosts of a soak: network namespaces with a small disk for the state folder and a clock that
can be set, or this host as it is.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

from tests.conftest import Home
from tests.end_to_end.conftest import World
from tests.netns import Host, Net

PROGRAM = Path(__file__).parent / "programs" / "curve.py"
STATE_MIB = 64
"""The disk of the state folder: half an hour's journal and its older half fit."""


class OneHost(World):
    """This host, as a host of one job."""

    name = "this host"
    inside: tuple[str, ...] = ()
    space = None

    def pids(self) -> set[int]:
        """All living processes of the job."""
        return self.processes()

    def launched(self) -> list[subprocess.Popen[bytes]]:
        """The processes that were started here, in order."""
        return list(self._started)


AnyHost = Host | OneHost


def clock_library(folder: Path) -> Path | None:
    """A library that sets the clock of processes that preload it; None if there is no C
    compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    made = folder / "clock.so"
    source = str(PROGRAM.with_name("clock.c"))
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", str(made), source], check=True)
    return made


class Stage:
    """Hosts, and a training that can be started on them."""

    def __init__(self, folder: Path, ranks: int, hosts: int, linger_s: int) -> None:
        self.folder, self._ranks, self._hosts = folder, ranks, hosts
        self.net: Net | None = None
        self.disk: Path | None = None
        if hosts > 1:
            names = [f"node{number}" for number in range(hosts)]
            self.disk = folder / "net" / "state"
            self.disk.mkdir(parents=True)
            command = ["mount", "-t", "tmpfs", "-o", f"size={STATE_MIB}m,mode=700", "soak"]
            subprocess.run([*command, str(self.disk)], check=True)
            self.net = Net(folder / "net", names)
            self.hosts: list[AnyHost] = [self.net[name] for name in names]
        else:
            self.hosts = [self._this(folder)]
        library = clock_library(folder)
        self.clocks: dict[str, Path] = {}
        for host in self.hosts:
            host.environment |= {"DDTOP_LINGER_S": str(linger_s)}
            if library is not None:
                self.clocks[host.name] = folder / f"clock-{host.name}"
                self.set_clock(host, 0)
                clock = {"LD_PRELOAD": str(library), "SOAK_CLOCK": str(self.clocks[host.name])}
                host.environment |= clock

    def _this(self, folder: Path) -> OneHost:
        home = Home(folder / "state", folder / "run")
        home.runtime.mkdir(mode=0o700)
        os.environ["DDTOP_STATE"], os.environ["DDTOP_RUNTIME"] = str(home.state), str(home.runtime)
        (folder / "world").mkdir()
        return OneHost(home, folder / "world")

    def set_clock(self, host: AnyHost, seconds: int) -> None:
        """From now on, the clock of that host is ahead of the right time by this much."""
        path = self.clocks[host.name]
        # In one write, into the same file, because its readers have mapped it.
        with path.open("r+b" if path.exists() else "wb", buffering=0) as file:
            file.write(struct.pack("=q", seconds * 1_000_000_000))

    def train(self, losses: Path, seconds: float, steps: int = 0, ddtop: bool = True) -> None:
        """Start the training on all hosts."""
        words = [str(PROGRAM), str(losses), str(seconds), str(steps)]
        torchrun = [sys.executable, "-m", "torch.distributed.run"]
        each = self._ranks // self._hosts
        for number, host in enumerate(self.hosts):
            where = ["--nproc-per-node", str(each)]
            if self.net is None:
                where.append("--standalone")
            else:
                where += ["--nnodes", str(self._hosts), "--node-rank", str(number)]
                where += ["--master-addr", "node0", "--master-port", "29500"]
            host.start_command([*torchrun, *where, *words], ddtop)

    def close(self) -> None:
        """End everything."""
        for host in self.hosts:
            host.close()
        if self.net is not None:
            self.net.close()
        if self.disk is not None:
            subprocess.run(["umount", "-l", str(self.disk)], check=False)


def words_of(pid: int) -> list[bytes]:
    """The command line of a process; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def processes_of(host: AnyHost, word: bytes) -> list[int]:
    """Processes of that host whose command line contains this word."""
    return sorted(pid for pid in host.pids() if any(word in one for one in words_of(pid)))


def ranks_of(host: AnyHost) -> list[int]:
    """The ranks on that host."""
    launcher = b"torch.distributed.run"
    found = processes_of(host, b"curve.py")
    return [pid for pid in found if launcher not in words_of(pid) and b"ip" not in words_of(pid)]


def sockets_of(host: AnyHost) -> list[str]:
    """Sockets in the network namespace of that host that listen or are connected, and the bound
    ones of the unix domain.
    """
    if host.space is None:
        return []
    command = ["ip", "netns", "exec", host.space, "cat"]
    listening, connected = "0A", "01"
    found = []
    for name in ("tcp", "tcp6", "unix"):
        with contextlib.suppress(subprocess.CalledProcessError):
            text = subprocess.run(
                [*command, f"/proc/net/{name}"], check=True, capture_output=True, text=True
            ).stdout
            for line in text.splitlines()[1:]:
                words = line.split()
                kept = len(words) > 7 if name == "unix" else words[3] in (listening, connected)
                if kept:
                    found.append(f"{host.name} {name} {' '.join(words[1:4])} {words[-1]}")
    return found
