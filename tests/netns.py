"""Hosts of a cluster on this machine: a network namespace and a host name each, joined by the wire
of `tests.bad_wire`.

To ddtop each namespace is a separate host (its identity includes the network namespace); pids,
/proc and /dev/shm are the machine's, so a test ends and stops processes by their pid as anywhere.
The hosts reach each other by the names in the hosts file that `ip netns exec` puts in place, and
nothing else of the machine. Needs root and the right to make namespaces; `unable()` says what is
missing.

However a test ends, nothing is left behind: as soon as the test's process is gone, the wire's
process ends all processes in the namespaces and removes the namespaces. The next start removes
namespaces whose creator is dead.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ddtop import registry
from tests.conftest import Home
from tests.end_to_end.conftest import PROGRAMS, World

PREFIX = "ddtop-test-"
NODES = ("node0", "node1", "node2", "login")
"""The last one has no rank: somebody looks from there."""
SPACES, FILES = Path("/run/netns"), Path("/etc/netns")
RUNTIMES = Path("/tmp")
"""Short: a socket path has at most 107 bytes."""
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
END_S = 10.0
_ENTER = 'hostname "$0" && exec "$@"'
_AGENT = """#!/bin/sh
# What `ssh HOST COMMAND` would do: a login of its own on that host, with nothing of our environment.
host=$1; shift
. {folder}/$host.sh
exec env -i $login ip netns exec {prefix}$host unshare -u sh -c 'hostname "$0" && exec sh -c "$1"' $host "$*"
"""  # noqa: E501


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@functools.cache
@functools.cache
def unable() -> str | None:
    """Why no hosts can be made here; None if they can."""
    if os.getuid() != 0:
        return "not root: network namespaces cannot be made"
    missing = [name for name in ("ip", "unshare", "hostname") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed: apt-get install iproute2 util-linux hostname"
    name = _prefix() + "try"
    try:
        _ip("netns", "add", name)
        _ip("-n", name, "link", "add", "try0", "type", "veth", "peer", "name", "try1")
        subprocess.run(
            ["ip", "netns", "exec", name, "unshare", "-u", "hostname", "try"],
            check=True,
            capture_output=True,
        )
    except subprocess.CalledProcessError as error:
        return (
            "this kernel or container makes no network namespaces:"
            f" {(error.stderr or b'').strip()[-200:]!r}"
        )
    finally:
        sweep(name)
    return None


def _prefix() -> str:
    """Identifies the process that the namespaces belong to: this one, not a later one with its
    pid.
    """
    return f"{PREFIX}{os.getpid()}.{registry.start_ticks(os.getpid())}-"


def sweep(prefix: str, but: int = 0) -> None:
    """End all processes in the namespaces whose names begin like this, except `but`, by pid. Then
    remove the namespaces.
    """
    found = [path.name for path in SPACES.glob(f"{prefix}*")]
    end = time.monotonic() + END_S
    while time.monotonic() < end:
        pids = {
            int(pid) for name in found for pid in _output("ip", "netns", "pids", name).split()
        } - {but}
        left = [pid for pid in pids if registry.start_ticks(pid) is not None]
        if not left:
            break
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    for name in found:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
    for path in [*FILES.glob(f"{prefix}*"), *RUNTIMES.glob(f"{prefix}*")]:
        shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        FILES.rmdir()


def sweep_abandoned() -> None:
    """Remove the namespaces whose creator is dead."""
    for path in [path for place in (SPACES, FILES, RUNTIMES) for path in place.glob(f"{PREFIX}*")]:
        pid, _, ticks = path.name.removeprefix(PREFIX).partition("-")[0].partition(".")
        if not pid.isdigit() or str(registry.start_ticks(int(pid))) != ticks:
            sweep(f"{PREFIX}{pid}.{ticks}-")


def _output(*words: str) -> str:
    return subprocess.run(words, check=False, capture_output=True, text=True).stdout


class Host(World):
    """One of the hosts. A command that is started on it runs there, with that host's name, address
    and folders.
    """

    def __init__(self, name: str, number: int, prefix: str, home: Home, folder: Path) -> None:
        folder.mkdir()
        super().__init__(home, folder)
        self.name, self.address, self.space = name, f"10.77.0.{number + 1}", prefix + name
        self.environment |= {"GLOO_SOCKET_IFNAME": "eth0", "TMPDIR": f"{home.runtime}-tmp"}
        self.inside = ["ip", "netns", "exec", self.space, "unshare", "-u", "sh", "-c", _ENTER, name]

    def start_command(
        self, command: list[str], ddtop: bool = True, **variables: object
    ) -> subprocess.Popen[bytes]:
        return super().start_command([*self.inside, *command], ddtop, **variables)

    def moving(self, iterations: int = 5, ranks: int = 6, within_s: float = 90.0) -> dict[str, Any]:
        """As for one host, but several launchers and six imports of torch on one machine take
        their time.
        """

        def found() -> dict[str, Any] | None:
            now = self.diagnose()
            return (
                now if (now["iteration"] or 0) >= iterations and now["reporting"] == ranks else None
            )

        return dict(self.until(found, within_s, "a moving job"))

    def ddtop(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [*self.inside, sys.executable, "-m", "ddtop", *words]
        environment = self.environment | variables
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    def says(self, *words: str, **variables: str) -> dict[str, Any] | None:
        """What a command prints with --json; None if it found no job or could not reach it."""
        done = self.ddtop(*words, "--json", **variables)
        if done.returncode not in (0, 1):
            return None
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def launched(self) -> list[subprocess.Popen[bytes]]:
        """The processes that were started here, in order."""
        return list(self._started)

    def link(self, how: str) -> None:
        """`ip link set eth0 up` or `down`, as when a cable is pulled."""
        _ip("-n", self.space, "link", "set", "eth0", how)

    def entries(self) -> list[registry.JobEntry]:
        """The job files that this host sees, newest first; on a shared home those of all hosts."""
        found = [
            msgspec.json.decode(path.read_bytes(), type=registry.JobEntry)
            for path in self.home.state.glob("*.json")
        ]
        return sorted(found, key=lambda entry: -entry.started_unix_ns)

    def job(self) -> str:
        """The name of the only job, once all its relays agree on it."""
        names = self.until(lambda: {entry.job for entry in self.entries()}, 90, "a job file")
        assert len(names) == 1, f"several jobs: {names}"
        return str(names.pop())

    def relay(self) -> int:
        """The pid of the only relay that runs here."""
        (pid,) = self.until(self._relays, 90, f"relay on {self.name}")
        return int(pid)

    def _relays(self) -> list[int]:
        found = []
        for pid in self.pids():
            with contextlib.suppress(OSError):
                if b"\0ddtop.relay\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found

    def pids(self) -> set[int]:
        """All living processes of this host."""
        pids = {int(pid) for pid in _output("ip", "netns", "pids", self.space).split()}
        found = {pid for pid in pids if registry.start_ticks(pid) is not None}
        self._seen |= found
        return found


_made = itertools.count()


class Net:
    """Some hosts and their wire, in `folder`. `shared`: one state folder, as on a shared home;
    otherwise one for each host.

    Raises:
        subprocess.CalledProcessError: a namespace or link cannot be made.
    """

    def __init__(
        self, folder: Path, names: Sequence[str] = NODES, shared: bool = True, seed: int = 8
    ) -> None:
        sweep_abandoned()
        self.prefix = f"{_prefix()}{next(_made)}-"
        self.runtime = RUNTIMES / self.prefix
        self.runtime.mkdir(mode=0o700)
        self.folder = folder
        self._wire: subprocess.Popen[str] | None = None
        folder.mkdir(exist_ok=True)
        self.hosts: dict[str, Host] = {}
        try:
            self._make(names, shared)
            command = [sys.executable, "-m", "tests.bad_wire", self.prefix, str(seed), *names]
            self._wire = subprocess.Popen(
                ["ip", "netns", "exec", self.prefix + "wire", *command],
                cwd=Path(__file__).parents[1],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl-C ends the test, and that ends the wire.
            )
            assert self._wire.stdin is not None
            assert self._wire.stdout is not None
            self._says, self._hears = self._wire.stdin, self._wire.stdout
            assert self._hears.readline() == "ready\n", "the wire does not start"
        except BaseException:
            self.close()
            raise

    def _make(self, names: Sequence[str], shared: bool) -> None:
        wire = self.prefix + "wire"
        _ip("netns", "add", wire)
        for number, name in enumerate(names):
            runtime = self.runtime / name
            for path in (runtime, Path(f"{runtime}-tmp")):
                path.mkdir(mode=0o700)
            home = Home(self.folder / "state" if shared else self.folder / f"{name}-state", runtime)
            host = self.hosts[name] = Host(name, number, self.prefix, home, self.folder / name)
            _ip("netns", "add", host.space)
            mac = f"02:00:00:00:00:{number:02x}"
            peer = ["peer", "name", "eth0", "address", mac, "netns", host.space]
            _ip("-n", wire, "link", "add", name, "type", "veth", *peer)
            _ip("-n", wire, "link", "set", name, "up")
            _ip("-n", host.space, "addr", "add", f"{host.address}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                _ip("-n", host.space, "link", "set", link, "up")
        for name, host in self.hosts.items():
            (FILES / host.space).mkdir(parents=True)
            self.resolve(name)
            wanted = (
                "PATH",
                "HOME",
                "DDTOP_STATE",
                "DDTOP_RUNTIME",
                "DDTOP_LINGER_S",
                "OMP_NUM_THREADS",
                "TMPDIR",
            )
            login = " ".join(
                f"{key}={host.environment[key]}" for key in wanted if key in host.environment
            )
            (self.folder / f"{name}.sh").write_text(f'login="{login}"\n')
        self.agent = self.folder / "agent"
        self.agent.write_text(_AGENT.format(folder=self.folder, prefix=self.prefix))
        self.agent.chmod(0o755)

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def cable(self, name: str, **settings: Any) -> tuple[int, int]:
        """Replace the cable to a host; without settings it is a good one (`bad_wire.Cable`).
        Returns the frames carried and lost so far.
        """
        self._says.write(json.dumps([name, settings]) + "\n")
        self._says.flush()
        carried, lost = json.loads(self._hears.readline())
        return carried, lost

    def resolve(self, at: str, **lies: str) -> None:
        """Give that host a hosts file, also for running processes: right except for these names and
        addresses.
        """
        names = {name: host.address for name, host in self.hosts.items()} | lies
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in names.items())]
        (FILES / self[at].space / "hosts").write_text("\n".join(lines) + "\n")

    # -- jobs

    def torchrun(
        self,
        program: str,
        *words: str,
        nodes: Sequence[str] = NODES[:-1],
        ranks: int = 2,
        **how: object,
    ) -> None:
        """A program of the folder `programs` under one torchrun a node, as in the README: node0
        is the master.
        """
        master = ["--master-addr", "node0", "--master-port", "29500"]
        for number, name in enumerate(nodes):
            where = [
                "--nnodes",
                str(len(nodes)),
                "--nproc-per-node",
                str(ranks),
                "--node-rank",
                str(number),
                *master,
            ]
            command = [*TORCHRUN, *where, str(PROGRAMS / f"{program}.py"), *words]
            self[name].start_command(command, **how)

    def plain(
        self, program: str, nodes: Sequence[str] = NODES[:-1], ranks: int = 2, **how: object
    ) -> None:
        """The same without a launcher, from one shell per rank: `ranks` per node, numbered across
        the nodes.
        """
        shared = {
            "WORLD_SIZE": len(nodes) * ranks,
            "LOCAL_WORLD_SIZE": ranks,
            "MASTER_ADDR": "node0",
            "MASTER_PORT": 29500,
        }
        for number in range(len(nodes) * ranks):
            numbers = {"RANK": number, "LOCAL_RANK": number % ranks}
            self[nodes[number // ranks]].start(program, **shared, **numbers, **how)

    def close(self) -> None:
        """End everything as if the test were killed: the wire's process loses its parent."""
        for host in self.hosts.values():
            host.pids()
        try:
            for host in self.hosts.values():
                host.close()
        finally:
            if self._wire is not None:
                self._says.close()
                self._wire.wait()
                self._hears.close()
            sweep(self.prefix)
