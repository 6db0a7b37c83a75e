"""What the launcher above a rank tells: which of its starts the rank belongs to, the same answer on all hosts; where its nodes meet.

Which variables a launcher sets is from its manual: srun(1), mpirun(1) and PRRTE's `prte-map`, Hydra's wiki, PALS' mpiexec(1),
LSF's "Environment variables set for job execution", PBS's User's Guide, torchrun's page "Elastic Launch".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ddtop.agent import identity
from ddtop.procfs import parent_of

_NAMESPACE = re.compile(r"-(\d+)@\d+$")
_ANCESTORS_MAX = 4
"""Between a rank and Hydra's proxy, or torchrun, stand at most a shell and a wrapper or two."""


class Start(NamedTuple):
    """One start of a launcher. `label`: what tells it from others in a job's name; `whole`: it is the name, without the script."""

    run: str
    label: str
    whole: bool = False


def mpi_start(environ: Mapping[str, str], parent_pid: int) -> Start | None:
    """The start of the launcher of MPI, or of srun, that numbered this rank; None where none is to be seen.

    Open MPI names it in PMIX_NAMESPACE ("prterun-HOST-PID@1"). Hydra names it nowhere, but all its proxies are called with the
    control port of the one mpiexec. jsrun's namespace and Cray PALS' id count within a batch job, which then gives the name.
    """
    namespace = environ.get("PMIX_NAMESPACE", "")
    job = batch_job(environ)
    if namespace and job and "JSM_NAMESPACE_RANK" in environ:
        return Start(f"jsm-{job}-{namespace}", job, True)
    if namespace and "OMPI_COMM_WORLD_RANK" in environ:
        found = _NAMESPACE.search(namespace)
        return Start(f"pmix-{namespace}", found[1] if found else namespace)
    if "PMI_RANK" in environ and (port := _control_port(parent_pid)) is not None:
        return Start(f"hydra-{port}", port.rpartition(":")[2])
    if step_numbers_ranks(environ):
        step = f"{environ['SLURM_JOB_ID']}.{environ['SLURM_STEP_ID']}"
        return Start(f"slurm-{step}", step, True)
    apid = environ.get("PALS_APID", "")
    if apid and "PMI_RANK" in environ:
        return Start(f"pals-{apid}", job or apid[:8], job is not None)
    return None


def step_numbers_ranks(environ: Mapping[str, str]) -> bool:
    """Each task of this step of srun is a rank: nothing else has numbered them, or a script has copied srun's own numbers.

    Where a launcher runs below srun, as one torchrun a node does, its numbers are others.
    """
    if not {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID"} <= environ.keys():
        return False
    if "RANK" not in environ:
        return True
    rank, size, _ = identity.SLURM_VARIABLES
    copied = environ["RANK"] == environ.get(rank) and environ.get("WORLD_SIZE") == environ.get(size)
    return copied and nodes_of_step(environ) > 1 and "TORCHELASTIC_RUN_ID" not in environ


def nodes_of_step(environ: Mapping[str, str]) -> int:
    """On so many nodes are the tasks of this step of srun; 0 outside of one, as in a batch script."""
    return (identity.number(environ, "SLURM_STEP_NUM_NODES") or 0) if environ.get("SLURM_STEP_ID") else 0


def batch_job(environ: Mapping[str, str]) -> str | None:
    """The id that the batch system gave the whole job. Check: `squeue --me`, `qstat -u $USER`, `bjobs`."""
    for name in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"):
        if environ.get(name):
            return environ[name]
    # Kubernetes tells a container no job's name; people give it one.
    return environ.get("JOB_NAME") or None if "KUBERNETES_SERVICE_HOST" in environ else None


class Meeting(NamedTuple):
    """Where the nodes of one torchrun job find each other, as all of them were told, and how many they may be."""

    endpoint: str | None
    nodes_max: int


def meeting(environ: Mapping[str, str], pid: int) -> Meeting:
    """What the torchrun at `pid`, or the next one above, was told: by its options, else by PET_*, as Kubeflow does."""
    told: dict[str, str] = {}
    for words in _command_lines(pid):
        if identity.identify({}, words, 0).role == identity.LAUNCHER:
            told = identity.launcher_options(words)
            break

    def option(name: str) -> str:
        return told.get(name) or environ.get(f"PET_{name.upper()}", "")

    endpoint = option("rdzv_endpoint")
    if not endpoint and option("master_addr"):
        endpoint = f"{option('master_addr')}:{option('master_port') or '29500'}"
    most = option("nnodes").rpartition(":")[2]
    nodes = int(most) if most.isascii() and most.isdigit() and len(most) < 7 and "standalone" not in told else 1
    return Meeting(endpoint or None, nodes)


def _control_port(pid: int) -> str | None:
    """HOST:PORT of mpiexec in the command line of the next Hydra proxy above. Check: `ps -o args= -p PPID`."""
    for words in _command_lines(pid):
        if "--control-port" in words[:-1]:
            return words[words.index("--control-port") + 1]
        # Intel MPI. Proxies below the first level of its tree call another proxy, which is none of mpiexec's addresses.
        told = {one: words[at + 1] for at, one in enumerate(words[:-1]) if one.startswith("--")}
        if told.get("--tree-level") == "1" and "--upstream-host" in told and "--upstream-port" in told:
            return f"{told['--upstream-host']}:{told['--upstream-port']}"
    return None


def _command_lines(pid: int) -> Iterator[Sequence[str]]:
    """Those of this process and of some above it; what cannot be read ends them."""
    for _ in range(_ANCESTORS_MAX):
        if pid < 1:
            return
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            return
        yield words[:-1] if words[-1] == "" else words
        pid = parent_of(pid) or 0
