"""Which start of an MPI launcher a process belongs to: the same answer on all of its ranks, on whatever host they are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ddtop.procfs import parent_of

_NAMESPACE = re.compile(r"-(\d+)@\d+$")
_ANCESTORS_MAX = 4
"""Between a rank and Hydra's proxy stand at most a shell and a wrapper or two."""


def mpi_run(environ: Mapping[str, str], parent_pid: int) -> tuple[str, str] | None:
    """(run, the number in the job's name) of the MPI launcher's start; None where none is to be seen.

    Open MPI names it in PMIX_NAMESPACE ("prterun-HOST-PID@1"). Hydra names it nowhere, but all its proxies are called with the
    control port of the one mpiexec. srun: job and step; the number then begins with `slurm-`.
    """
    namespace = environ.get("PMIX_NAMESPACE", "")
    if namespace and "OMPI_COMM_WORLD_RANK" in environ:
        found = _NAMESPACE.search(namespace)
        return f"pmix-{namespace}", found[1] if found else namespace
    if "PMI_RANK" in environ and (port := _control_port(parent_pid)) is not None:
        return f"hydra-{port}", port.rpartition(":")[2]
    job, step = environ.get("SLURM_JOB_ID"), environ.get("SLURM_STEP_ID")
    if job and step and "SLURM_PROCID" in environ and "RANK" not in environ:
        return f"slurm-{job}.{step}", f"slurm-{job}.{step}"
    return None


def _control_port(pid: int) -> str | None:
    """HOST:PORT in the command line of the next `hydra_pmi_proxy` above. Check: `ps -o args= -p PPID`."""
    for _ in range(_ANCESTORS_MAX):
        if pid <= 1:
            return None
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            return None
        if "--control-port" in words[:-1]:
            return words[words.index("--control-port") + 1]
        pid = parent_of(pid) or 0
    return None
