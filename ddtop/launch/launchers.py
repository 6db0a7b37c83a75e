"""The environment variables of each launcher: one class per launcher, one protocol.

To add a launcher, add a class here and a line to `every_launcher()`.
"""

from __future__ import annotations

from ddtop.launch.launcher import Launcher, number

# False at run time, to save the import.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ddtop.launch.launcher import Ancestors
    from ddtop.launch.start import LauncherStart


# -- Hydra, the launcher of MPICH and Intel MPI, and others that speak PMI
#
# Source: Hydra's wiki, "Using the Hydra Process Manager"; Intel MPI's developer reference.


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
    commands = ("mpirun", "mpiexec", "mpiexec.hydra")
    helpers = ("hydra_pmi_proxy",)
    ends_all = ("PMI_",)

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


# -- Kubernetes: pods of PyTorchJob, TrainJob, or a StatefulSet
#
# Source: "Environment variables" of Pods; Kubeflow's pages on PyTorchJob and TrainJob.


_IN_A_POD = "KUBERNETES_SERVICE_HOST"


class Kubernetes(Launcher):
    """A pod. Its operators give the ranks torch's own variables."""

    name = "kubernetes"
    job_mark = _IN_A_POD
    sent = r"KUBERNETES_SERVICE_(HOST|PORT)|JOB_NAME|JOB_COMPLETION_INDEX|POD_NAME"

    def job_id(self, environ: Mapping[str, str]) -> str | None:
        """JOB_NAME. Kubernetes does not tell a container the name of its job, but people often set
        this variable."""
        return environ.get("JOB_NAME") or None if _IN_A_POD in environ else None


def master_pod(environ: Mapping[str, str]) -> str | None:
    """The name of this pod, if it is the master of its PyTorchJob.

    Some operators give the master only the name `localhost`.
    """
    name = environ.get("HOSTNAME", "")
    return name if _IN_A_POD in environ and name.endswith("-master-0") else None


# -- LSF: jsrun, blaunch, and the batch job around them
#
# Source: LSF's manual, "Environment variables set for job execution"; jsrun(1).


class Lsf(Launcher):
    """`jsrun` numbers the programs that it starts, of any kind. `blaunch` does not number them."""

    name = "lsf"
    ranks = ("JSM_NAMESPACE_RANK",)
    world_sizes = ("JSM_NAMESPACE_SIZE",)
    local_ranks = ("JSM_NAMESPACE_LOCAL_RANK",)
    local_sizes = ("JSM_NAMESPACE_LOCAL_SIZE",)
    numbers_any_task = True
    own_to_rank = ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_LOCAL_RANK")
    job_mark = "LSB_JOBID"
    sent = (
        r"JSM_NAMESPACE_\w+|LSF_PM_TASKID"
        r"|LSB_(JOBID|JOBINDEX|HOSTS|MCPU_HOSTS|DJOB_NUMPROC)"
    )
    prefixes = ("JSM_NAMESPACE_",)
    commands = ("jsrun",)
    requeues = True

    def start(
        self,
        environ: Mapping[str, str],
        ancestors: Ancestors,
        batch_job: str | None,
    ) -> LauncherStart | None:
        """jsrun's namespace counts within the batch job, so the job's id is the name."""
        namespace = environ.get("PMIX_NAMESPACE", "")
        if not (namespace and batch_job and "JSM_NAMESPACE_RANK" in environ):
            return None
        from ddtop.launch.start import LauncherStart

        return LauncherStart(f"jsm-{batch_job}-{namespace}", batch_job, True)

    def first_host(self, environ: Mapping[str, str]) -> str:
        """The first of LSB_HOSTS (`h1 h1 h2`) or LSB_MCPU_HOSTS (`h1 2 h2 2`)."""
        hosts = environ.get("LSB_HOSTS") or environ.get("LSB_MCPU_HOSTS") or ""
        return hosts.partition(" ")[0]


# -- Open MPI: mpirun, mpiexec, prterun
#
# Source: mpirun(1), and `prte-map` of PRRTE.


class OpenMpi(Launcher):
    """`mpirun` of Open MPI names each start in PMIX_NAMESPACE: "prterun-HOST-PID@1"."""

    name = "openmpi"
    ranks = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK")
    world_sizes = ("OMPI_COMM_WORLD_SIZE",)
    local_ranks = ("OMPI_COMM_WORLD_LOCAL_RANK",)
    local_sizes = ("OMPI_COMM_WORLD_LOCAL_SIZE",)
    new_for_each_rank = ("OMPI_COMM_WORLD_RANK", "PMIX_NAMESPACE")
    own_to_rank = (
        *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_NODE_RANK"),
        "PMIX_RANK",
    )
    sent = r"OMPI_COMM_WORLD_\w+|OMPI_MCA_orte_hnp_uri|PMIX_(NAMESPACE|RANK|HOSTNAME)"
    prefixes = ("OMPI_COMM_", "PMIX_")
    commands = ("mpirun", "mpiexec", "prterun", "orterun")
    helpers = ("prted", "orted", "prte")
    ends_all = ("OMPI_", "PMIX_")

    def start(
        self,
        environ: Mapping[str, str],
        ancestors: Ancestors,
        batch_job: str | None,
    ) -> LauncherStart | None:
        """The namespace; its launcher's pid is the label."""
        namespace = environ.get("PMIX_NAMESPACE", "")
        if not namespace or "OMPI_COMM_WORLD_RANK" not in environ:
            return None
        if batch_job and "JSM_NAMESPACE_RANK" in environ:
            # jsrun sets these variables too, and its namespaces count from 1 in each batch job.
            return None
        from ddtop.launch.start import LauncherStart

        before, _, number = namespace.rpartition("@")
        pid = before.rpartition("-")[2] if "-" in before else ""
        is_named = number.isdigit() and pid.isdigit()
        return LauncherStart(f"pmix-{namespace}", pid if is_named else namespace)

    def started_from(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """`22;tcp://10.1.2.3,192.168.0.1:5555`: Open MPI up to 4 gives its own addresses."""
        uri = environ.get("OMPI_MCA_orte_hnp_uri", "")
        if not uri:
            return ()
        import re

        return tuple(re.findall(r"tcp[46]?://\[?([^,;\]]+?)\]?(?::[0-9,]+)?(?:[,;]|$)", uri))


# -- PALS, the `mpiexec` and `aprun` of HPE Cray systems. Its ranks have Hydra's PMI variables too
#
# Source: mpiexec(1) of PALS.


class Pals(Launcher):
    """One PALS_APID for each start."""

    name = "pals"
    own_to_rank = ("PALS_RANKID", "PALS_LOCAL_RANKID")
    sent = r"PALS_(APID|RANKID|NODEID|LOCAL_RANKID|LOCAL_SIZE)"
    prefixes = ("PALS_",)
    commands = ("aprun",)

    def start(
        self,
        environ: Mapping[str, str],
        ancestors: Ancestors,
        batch_job: str | None,
    ) -> LauncherStart | None:
        """The id of the start. The name comes from the batch job, because the id is hard to
        type."""
        apid = environ.get("PALS_APID", "")
        if not apid or "PMI_RANK" not in environ:
            return None
        from ddtop.launch.start import LauncherStart

        return LauncherStart(f"pals-{apid}", batch_job or apid[:8], batch_job is not None)


# -- PBS: the batch job. Its `pbsdsh` numbers no ranks: another launcher does
#
# Source: PBS Professional User's Guide, "Job Environment Variables".


class Pbs(Launcher):
    """OpenPBS, PBS Professional, Torque."""

    name = "pbs"
    requeues = True
    job_mark = "PBS_JOBID"
    sent = r"PBS_(JOBID|NODENUM|TASKNUM|VNODENUM|NODEFILE|O_HOST)"


# -- torchrun, and every launcher that sets torch's own variables
#
# Source: torchrun's pages "torchrun (Elastic Launch)" and "Environment Variables".


RUN_ID = "TORCHELASTIC_RUN_ID"


class Torchrun(Launcher):
    """`torchrun`, `python -m torch.distributed.run`."""

    name = "torchrun"
    ranks = ("RANK",)
    world_sizes = ("WORLD_SIZE",)
    local_ranks = ("LOCAL_RANK",)
    local_sizes = ("LOCAL_WORLD_SIZE",)
    new_for_each_rank = (
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT", RUN_ID),
        "TORCHELASTIC_RESTART_COUNT",
    )
    own_to_rank = ("RANK", "LOCAL_RANK", "ROLE_RANK", "GROUP_RANK", "TORCHELASTIC_ERROR_FILE")
    nodes_of_job = ("GROUP_WORLD_SIZE", "NNODES")
    sent = (
        r"MASTER_(ADDR|PORT)|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|LOCAL_SIZE|NODE_RANK"
        r"|NNODES|GROUP_(RANK|WORLD_SIZE)"
        r"|TORCHELASTIC_(RUN_ID|RESTART_COUNT|MAX_RESTARTS|USE_AGENT_STORE)"
        r"|PET_(NNODES|NODE_RANK|NPROC_PER_NODE|N_PROC_PER_NODE|RDZV_(BACKEND|ENDPOINT|ID)"
        r"|MASTER_(ADDR|PORT)|MAX_RESTARTS|STANDALONE)"
    )
    prefixes = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_", "TORCHELASTIC_")
    ends_all = ("TORCHELASTIC_",)

    def restarts(self, environ: Mapping[str, str]) -> int | None:
        return number(environ, "TORCHELASTIC_RESTART_COUNT")

    def chosen_name(self, environ: Mapping[str, str]) -> str | None:
        """`--rdzv-id` of the user: torchrun fills in `none`, or a UUID with --standalone."""
        value = environ.get(RUN_ID, "")
        if value in ("", "none"):
            return None
        lengths = [len(part) for part in value.split("-")]
        return None if lengths == [8, 4, 4, 4, 12] else value


def is_elastic(environ: Mapping[str, str]) -> bool:
    """Whether torchrun's agent started this process, directly or in another launcher."""
    return RUN_ID in environ


# -- Slurm: srun, and the batch job around it
#
# Source: "OUTPUT ENVIRONMENT VARIABLES" in srun(1) and sbatch(1).


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
    commands = ("srun",)
    helpers = ("slurmstepd",)
    ends_all = ("SLURM_",)
    requeues = True

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
