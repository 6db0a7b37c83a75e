"""Slurm: srun, and the batch job around it.

Source: "OUTPUT ENVIRONMENT VARIABLES" in srun(1) and sbatch(1).
"""

from __future__ import annotations

from ddtop.launch.launcher import Launcher, number
from ddtop.launch.torchrun import is_elastic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ddtop.launch.launcher import Ancestors
    from ddtop.launch.start import LauncherStart


class Slurm(Launcher):
    """`srun`. In the ranks of an mpirun, these variables describe mpirun itself."""

    name = "slurm"
    ranks = ("SLURM_PROCID",)
    world_sizes = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    local_ranks = ("SLURM_LOCALID",)
    numbers_any_task = True
    own_to_rank = ("SLURM_PROCID", "SLURM_LOCALID")
    job_mark = "SLURM_JOB_ID"
    nodes_of_job = ("SLURM_NNODES",)
    sent = (
        r"SLURM_(JOB_ID|JOB_NUM_NODES|JOB_NODELIST|STEP_ID|STEP_NUM_NODES|STEP_NUM_TASKS"
        r"|STEP_NODELIST|STEP_TASKS_PER_NODE|PROCID|LOCALID|NODEID|NTASKS|NNODES|NODELIST"
        r"|LAUNCH_NODE_IPADDR|RESTART_COUNT|HET_JOB_ID|ARRAY_JOB_ID|ARRAY_TASK_ID)|SLURMD_NODENAME"
    )
    prefixes = ("SLURM_",)

    def restarts(self, environ: Mapping[str, str]) -> int | None:
        """SLURM_RESTART_COUNT: a job that was requeued keeps its id and the numbers of its steps.

        Source: sbatch(1). It is not set before the first requeue.
        """
        return number(environ, "SLURM_RESTART_COUNT") if step_numbers_ranks(environ) else None

    def numbers(self, environ: Mapping[str, str]) -> tuple[int, int, int | None] | None:
        """The numbers of a step. A batch script has SLURM_NTASKS, but no tasks yet."""
        rank, size = number(environ, "SLURM_PROCID"), number(environ, "SLURM_STEP_NUM_TASKS")
        if rank is None or size is None:
            return None
        return rank, size, number(environ, "SLURM_LOCALID")

    def start(
        self,
        environ: Mapping[str, str],
        ancestors: Ancestors,
        batch_job: str | None,
    ) -> LauncherStart | None:
        """The step, if its tasks are the ranks."""
        if not step_numbers_ranks(environ):
            return None
        from ddtop.launch.start import LauncherStart

        step = step_name(environ)
        return LauncherStart(f"slurm-{step}", step, True)

    def start_across_nodes(self, environ: Mapping[str, str]) -> str | None:
        """`JOB.STEP` of a step on several nodes; it may run one torchrun on each."""
        return step_name(environ) if nodes_of_step(environ) > 1 else None

    def nodes_of_world(self, environ: Mapping[str, str], world_size: int | None) -> int | None:
        """The nodes of a step whose tasks are the ranks, or are as many."""
        tasks = number(environ, "SLURM_STEP_NUM_TASKS")
        if step_numbers_ranks(environ) or tasks == world_size:
            return nodes_of_step(environ) or None
        return None

    def nodes_of_rank(self, environ: Mapping[str, str], rank: int | None) -> int | None:
        """The nodes of the step, or of the job, if the number of the task is the rank."""
        if environ.get("SLURM_PROCID") != str(rank):
            return None
        step = "SLURM_STEP_NUM_NODES"
        return number(environ, step if environ.get(step) else "SLURM_NNODES")

    def first_host(self, environ: Mapping[str, str]) -> str:
        """The first of SLURM_STEP_NODELIST: `node[003-010,12],other` gives node003."""
        nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_NODELIST") or ""
        if not nodes:
            return ""
        import re

        match = re.match(r"^([\w.-]+)(?:\[([0-9]+)[^\]]*\]([\w.-]*))?(?:,|$)", nodes)
        return f"{match[1]}{match[2] or ''}{match[3] or ''}" if match else ""

    def started_from(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """The address of srun's own host."""
        address = environ.get("SLURM_LAUNCH_NODE_IPADDR", "")
        return (address,) if address else ()


def step_name(environ: Mapping[str, str]) -> str:
    """`JOB.STEP` as `sacct` prints it."""
    return f"{environ.get('SLURM_JOB_ID')}.{environ['SLURM_STEP_ID']}"


def nodes_of_step(environ: Mapping[str, str]) -> int:
    """SLURM_STEP_NUM_NODES; 0 outside a step, as in a batch script."""
    if not environ.get("SLURM_STEP_ID"):
        return 0
    return number(environ, "SLURM_STEP_NUM_NODES") or 0


def step_numbers_ranks(environ: Mapping[str, str]) -> bool:
    """Whether each task of this step is a rank.

    It is, if no other launcher has numbered the ranks, or if a script has copied the numbers of
    srun. One torchrun on each node below srun has other numbers."""
    if not {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID"} <= environ.keys():
        return False
    if "RANK" not in environ:
        return True
    pairs = (("RANK", "SLURM_PROCID"), ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS"))
    copied = all(environ.get(one) == environ.get(other) for one, other in pairs)
    return copied and nodes_of_step(environ) > 1 and not is_elastic(environ)
