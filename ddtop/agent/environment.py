"""What leaves the process of its environment and command line: what matters to a distributed job, bounded, and nothing secret."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ddtop.redaction import redacted_variable, redacted_words

VALUE_CHARACTERS, ARGUMENTS = 200, 40
VARIABLES_MAX = 128
"""Kubernetes sets seven variables for each service of the namespace, whatever that is called: `torch-0` is TORCH_0_SERVICE_HOST, ..."""

# How the ranks find each other, on which hosts they are and who started them: `relay.hub.topology` reads these.
_WHEREABOUTS = re.compile(
    r"^(MASTER_(ADDR|PORT)|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|LOCAL_SIZE|NODE_RANK|NNODES|GROUP_(RANK|WORLD_SIZE)"
    r"|TORCHELASTIC_(RUN_ID|RESTART_COUNT|MAX_RESTARTS|USE_AGENT_STORE)|DDTOP_HUB|(NCCL|GLOO|TP)_SOCKET_IFNAME"
    r"|OMPI_COMM_WORLD_\w+|OMPI_MCA_orte_hnp_uri|PMI_(RANK|SIZE|LOCAL_RANK|LOCAL_SIZE|PORT|ID|JOBID|UNIVERSE_SIZE)"
    r"|MPI_LOCAL\w+|PMIX_(NAMESPACE|RANK|HOSTNAME)|PALS_(APID|RANKID|NODEID|LOCAL_RANKID|LOCAL_SIZE)|JSM_NAMESPACE_\w+"
    r"|SLURM_(JOB_ID|JOB_NUM_NODES|JOB_NODELIST|STEP_ID|STEP_NUM_NODES|STEP_NUM_TASKS|STEP_NODELIST|STEP_TASKS_PER_NODE"
    r"|PROCID|LOCALID|NODEID|NTASKS|NNODES|NODELIST|LAUNCH_NODE_IPADDR|HET_JOB_ID|ARRAY_JOB_ID|ARRAY_TASK_ID)|SLURMD_NODENAME"
    r"|PBS_(JOBID|NODENUM|TASKNUM|VNODENUM|NODEFILE|O_HOST)|LSB_(JOBID|JOBINDEX|HOSTS|MCPU_HOSTS|DJOB_NUMPROC)|LSF_PM_TASKID"
    r"|KUBERNETES_SERVICE_(HOST|PORT)|JOB_NAME|JOB_COMPLETION_INDEX|POD_NAME"
    r"|PET_(NNODES|NODE_RANK|NPROC_PER_NODE|N_PROC_PER_NODE|RDZV_(BACKEND|ENDPOINT|ID)|MASTER_(ADDR|PORT)|MAX_RESTARTS|STANDALONE))$"
)
_OTHERS = re.compile(
    r"^(MASTER_|LOCAL_|GROUP_|ROLE_|TORCH|NCCL_|GLOO_|TP_SOCKET|OMP_|MKL_|KMP_|CUDA_|NVIDIA_|PYTHON(HASHSEED|UNBUFFERED|OPTIMIZE)"
    r"|CONDA_DEFAULT_ENV$|VIRTUAL_ENV|TOKENIZERS_PARALLELISM$|TMPDIR$)"
)


def redacted_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that matter to a distributed job, with secrets replaced (`ddtop.redaction`).

    Where there are too many, those that say where the ranks are stay.
    """
    first = [name for name in environ if _WHEREABOUTS.match(name)]
    rest = [name for name in environ if _OTHERS.match(name) and name not in first]
    shown = (*first, *rest)[:VARIABLES_MAX]
    return {name: redacted_variable(name, environ[name], VALUE_CHARACTERS) for name in shown}


def redacted_argv(argv: list[str]) -> tuple[str, ...]:
    """The command line: the value of `--token=X` and the word after `--token` are replaced, and what else is a secret."""
    return redacted_words(argv[:ARGUMENTS], VALUE_CHARACTERS)
