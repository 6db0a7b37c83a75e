"""A double of another host: a separate state folder behind ssh. A real sshd on loopback, or a
stand-in for ssh.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.ports import free_port

ROOT = Path(__file__).parents[1]
DEADLINE_S = 15.0
FAKE, REAL = "a stand-in for ssh", "sshd"
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
_STAND_IN = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
if [ -e {down} ]; then echo "ssh: connect to host $2 port 22: Connection refused" >&2; exit 255; fi
if [ "$2" != there ]; then echo "ssh: Could not resolve hostname $2: Name or service not known" >&2; exit 255; fi
exec sh -c "$3"
"""  # noqa: E501
_SSHD = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
"""
_CONFIG = """
Host far
  ProxyJump there
Host there far
  HostName 127.0.0.1
  Port {port}
  IdentityFile {folder}/user_key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known
  StrictHostKeyChecking accept-new
"""

_ENDS_WITH_US = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"
)
"""PR_SET_PDEATHSIG: a test run that is killed closes nothing."""


class There:
    """The environment of that host. `environment`: for a ddtop on this host, which finds its own
    state folder empty.
    """

    def __init__(self, folder: Path, state: Path, runtime: Path) -> None:
        self.folder = folder
        self._state, self._runtime = state, runtime
        self._down = folder / "down"
        (folder / "here").mkdir()
        self.environment = {"DDTOP_STATE": str(folder / "here"), "DDTOP_REMOTE": self.says()}

    def says(self, before: str = "", root: Path = ROOT) -> str:
        """The command that starts ddtop there. `before`: lines of shell that a login would run
        first. `root`: the folder with the package.
        """
        script = self.folder / f"ddtop{len(list(self.folder.glob('ddtop*')))}"
        script.write_text(
            f"#!/bin/sh\n{before}\necho $$ >> {self.folder}/bridges\n"
            f"export DDTOP_STATE={self._state} DDTOP_RUNTIME={self._runtime}"
            f" PYTHONPATH={root}\n"
            f'exec {sys.executable} -m ddtop "$@"\n'
        )
        script.chmod(0o755)
        return str(script)

    @property
    def bridges(self) -> list[int]:
        """The pids of all bridges that were started."""
        path = self.folder / "bridges"
        return [int(word) for word in path.read_text().split()] if path.exists() else []

    def down(self) -> None:
        """Refuse new connections from now on."""
        self._down.touch()

    def up(self) -> None:
        """Accept connections again."""
        self._down.unlink()

    def cut(self, ssh: psutil.Process) -> None:
        """Break the connection."""
        ssh.kill()

    def close(self) -> None:
        """End all started processes."""


class StandIn(There):
    """Commands for that host run on this host at once."""

    def __init__(self, folder: Path, state: Path, runtime: Path) -> None:
        super().__init__(folder, state, runtime)
        program = folder / "ssh"
        program.write_text(_STAND_IN.format(down=self._down))
        program.chmod(0o755)
        self.environment["DDTOP_SSH"] = str(program)

    def cut(self, ssh: psutil.Process) -> None:
        # No shell is between the two, so the bridge has the same pipes.
        psutil.Process(self.bridges[-1]).kill()
        with contextlib.suppress(psutil.NoSuchProcess):  # It may have noticed that by itself.
            super().cut(ssh)


class Sshd(There):
    """An sshd with its own keys and configuration, run as this user."""

    def __init__(self, folder: Path, state: Path, runtime: Path) -> None:
        super().__init__(folder, state, runtime)
        for name in ("host_key", "user_key"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True
            )
        self._port = free_port()
        (folder / "sshd_config").write_text(_SSHD.format(folder=folder, port=self._port))
        (folder / "config").write_text(_CONFIG.format(folder=folder, port=self._port))
        self.environment["DDTOP_SSH"] = f"ssh -F {folder / 'config'}"
        self._process: subprocess.Popen[bytes] | None = None
        self.up()

    def up(self) -> None:
        assert SSHD is not None
        with (self.folder / "log").open("ab") as log:
            command = [
                sys.executable,
                "-c",
                _ENDS_WITH_US,
                SSHD,
                "-D",
                "-e",
                "-f",
                self.folder / "sshd_config",
            ]
            self._process = subprocess.Popen(command, stderr=log)
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end and self._process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                    return
            time.sleep(0.01)
        self.close()
        pytest.skip(f"sshd does not start here: {(self.folder / 'log').read_text()[-300:]}")

    def down(self) -> None:
        self.close()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def host(kind: str, folder: Path, state: Path, runtime: Path) -> There:
    """That host. Skips the test if there is no sshd."""
    folder.mkdir()
    if kind == FAKE:
        return StandIn(folder, state, runtime)
    if SSHD is None or shutil.which("ssh") is None:
        pytest.skip("no sshd here: apt-get install openssh-server")
    if os.getuid() == 0:
        # This folder is missing if the service has never run, and without it sshd does not start as
        # root.
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
    return Sshd(folder, state, runtime)
