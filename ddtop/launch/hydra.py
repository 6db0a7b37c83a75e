"""Hydra, the launcher of MPICH and Intel MPI, and others that speak PMI.

Source: Hydra's wiki, "Using the Hydra Process Manager"; Intel MPI's developer reference.
"""

from __future__ import annotations

from ddtop.launch.launcher import Launcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ddtop.launch.launcher import Ancestors
    from ddtop.launch.start import LauncherStart


class Hydra(Launcher):
    """`mpiexec` of MPICH or Intel MPI.

    It gives a start no name. But all its proxies have the control port of mpiexec on their command
    line, so the port identifies the start.
    """

    name = "hydra"
    ranks = ("PMI_RANK",)
    world_sizes = ("PMI_SIZE",)
    # Cray's PALS, and srun with PMI-2, set PMI_RANK and PMI_SIZE but other names for the rest.
    local_ranks = ("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID", "SLURM_LOCALID")
    local_sizes = ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE")
    new_for_each_rank = ("PMI_RANK",)
    own_to_rank = ("PMI_RANK",)
    sent = (
        r"PMI_(RANK|SIZE|LOCAL_RANK|LOCAL_SIZE|PORT|ID|JOBID|UNIVERSE_SIZE)"
        r"|MPI_LOCAL\w+"
    )
    prefixes = ("PMI_",)

    def start(
        self,
        environ: Mapping[str, str],
        ancestors: Ancestors,
        batch_job: str | None,
    ) -> LauncherStart | None:
        """The control port of mpiexec. Check: `ps -o args= -p PPID`."""
        if "PMI_RANK" not in environ:
            return None
        for words in ancestors():
            port = _control_port(words)
            if port is not None:
                from ddtop.launch.start import LauncherStart

                return LauncherStart(f"hydra-{port}", port.rpartition(":")[2])
        return None

    def started_from(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """PMI_PORT is HOST:PORT of mpiexec."""
        host = environ.get("PMI_PORT", "").rpartition(":")[0]
        return (host,) if host else ()


def _control_port(words: Sequence[str]) -> str | None:
    """HOST:PORT of mpiexec in the command line of one of its proxies."""
    if "--control-port" in words[:-1]:
        return words[words.index("--control-port") + 1]
    # Intel MPI. A proxy below the first level of its tree calls another proxy, not mpiexec.
    options = {one: words[at + 1] for at, one in enumerate(words[:-1]) if one.startswith("--")}
    names = ("--upstream-host", "--upstream-port")
    if options.get("--tree-level") == "1" and all(name in options for name in names):
        return ":".join(options[name] for name in names)
    return None
