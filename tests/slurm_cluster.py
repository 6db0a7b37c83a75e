"""A real Slurm of two nodes on this machine: munged, slurmctld and two slurmd, in one folder.

`unable()` says what is missing. Needs root and Debian's slurmctld, slurmd, slurm-client and munge.
All of it runs in the foreground as children of the test, and is ended by pid.
"""

from __future__ import annotations

import functools
import getpass
import os
import secrets
import shutil
import socket
import subprocess
import time
from pathlib import Path

from tests.ports import free_ports

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "squeue", "scontrol")
START_S, END_S = 30.0, 10.0
_CONF = """\
ClusterName=ddtop
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
KillWait=2
NodeName=node0 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=8 RealMemory=1000
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=8 RealMemory=1000
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@functools.cache
def unable() -> str | None:
    """Why there can be no Slurm here, None if there can."""
    if os.getuid() != 0:
        return "not root: slurmd starts jobs as their users"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        advice = "apt-get install --no-install-recommends slurmctld slurmd slurm-client munge"
        return f"{', '.join(missing)} not installed: {advice}"
    return None


class Cluster:
    """Two nodes, `node0` and `node1`, that are both this host. `folder`: a short path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        (folder / "state").mkdir()
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        text = _CONF.format(
            folder=folder, host=socket.gethostname(), user=getpass.getuser(), ports=free_ports(3)
        )
        (folder / "slurm.conf").write_text(text)
        try:
            self._start_all()
        except BaseException:
            self.close()
            raise

    def _start_all(self) -> None:
        files = (f"--{name}-file={self.folder}/munged.{name}" for name in ("pid", "log", "seed"))
        key = f"--key-file={self.folder}/munge.key"
        self._start("munged", "-F", "--force", key, f"--socket={self.folder}/munge.sock", *files)
        self.until((self.folder / "munge.sock").exists, "munged")
        self._start("slurmctld", "-D", "-c")
        for name in ("node0", "node1"):
            self._start("slurmd", "-D", "-N", name)
        self.until(lambda: self.says("sinfo", "-h", "-o", "%D %T") == "2 idle", "two idle nodes")

    def _start(self, *command: str) -> None:
        with (self.folder / f"{command[0]}.out").open("ab") as out:
            self._daemons.append(
                subprocess.Popen(
                    command,
                    env=os.environ | self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
            )

    def says(self, *command: str) -> str:
        """What a command of Slurm prints."""
        done = subprocess.run(
            command,
            env=os.environ | self.environment,
            capture_output=True,
            text=True,
            timeout=END_S,
            check=False,
        )
        return done.stdout.strip()

    def until(self, done: object, what: str) -> None:
        """Wait until `done()` is true."""
        assert callable(done)
        end = time.monotonic() + START_S
        while not done():
            assert time.monotonic() < end, f"no {what}: {self.logs()}"
            time.sleep(0.05)

    def logs(self) -> str:
        """The ends of what its daemons have logged."""
        return "\n".join(path.read_text()[-500:] for path in self.folder.glob("*.log"))

    def running(self) -> str | None:
        """The id of the only job that runs."""
        return self.says("squeue", "-h", "-t", "RUNNING", "-o", "%A") or None

    def close(self) -> None:
        """Cancel all jobs and end the daemons."""
        try:
            self.says("scancel", "--full", "--signal=KILL", "-u", getpass.getuser())
            self.says("scancel", "-u", getpass.getuser())
            end = time.monotonic() + END_S
            while self.says("squeue", "-h") and time.monotonic() < end:
                time.sleep(0.1)
        finally:
            for one in reversed(self._daemons):
                one.terminate()
            for one in self._daemons:
                try:
                    one.wait(END_S)
                except subprocess.TimeoutExpired:
                    one.kill()
                    one.wait()
