"""The variables of launchers and schedulers, exactly as they set them in a rank.

Source: `env | sort` in a rank, and the manuals that the modules of `ddtop.launch` name.
"""

TORCHRUN = {
    "LOCAL_RANK": "1",
    "RANK": "5",
    "GROUP_RANK": "1",
    "ROLE_RANK": "5",
    "ROLE_NAME": "default",
    "LOCAL_WORLD_SIZE": "4",
    "WORLD_SIZE": "8",
    "GROUP_WORLD_SIZE": "2",
    "ROLE_WORLD_SIZE": "8",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "OMP_NUM_THREADS": "1",
}
SBATCH = {
    "SLURM_JOB_ID": "77",
    "SLURM_JOBID": "77",
    "SLURM_NNODES": "2",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NTASKS": "2",
    "SLURM_NODELIST": "node[0-1]",
    "SLURM_JOB_NODELIST": "node[0-1]",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_GTIDS": "0",
    "SLURMD_NODENAME": "node0",
    "SLURM_TASKS_PER_NODE": "1(x2)",
    "SLURM_SUBMIT_HOST": "login",
}
STEP = SBATCH | {
    "SLURM_STEP_ID": "0",
    "SLURM_STEPID": "0",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_NODELIST": "node[0-1]",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURMD_NODENAME": "node1",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1",
    "SLURM_SRUN_COMM_HOST": "10.0.0.1",
    "SLURM_SRUN_COMM_PORT": "43212",
}
STEP_OF_TORCHRUNS = STEP | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_LOCALID": "0"}
STEP_ON_ONE_NODE = STEP | {
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_NODELIST": "node1",
    "SLURM_STEP_NUM_TASKS": "1",
}
INTERACTIVE = SBATCH | {
    "SLURM_STEP_ID": "4294967290",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_NUM_TASKS": "1",
}
PMIX_BY_SRUN = {
    "PMIX_NAMESPACE": "slurm.pmix.77.0",
    "PMIX_RANK": "5",
    "PMIX_HOSTNAME": "node1",
    "PMIX_GDS_MODULE": "hash",
}
PMI2_BY_SRUN = {"PMI_RANK": "5", "PMI_SIZE": "8", "PMI_FD": "16", "PMI_JOBID": "77.0"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "OMPI_UNIVERSE_SIZE": "8",
    "PMIX_NAMESPACE": "prterun-node0-4711@1",
    "PMIX_RANK": "5",
    "PMIX_HOSTNAME": "node1",
    "PMIX_SERVER_URI41": "prterun-node0-4711@0.1;tcp4://127.0.0.1:38247",
}
HYDRA = {
    "PMI_RANK": "5",
    "PMI_SIZE": "8",
    "PMI_FD": "9",
    "MPI_LOCALRANKID": "1",
    "MPI_LOCALNRANKS": "4",
}
PBS = {
    "PBS_JOBID": "1234.pbs01",
    "PBS_NODEFILE": "/var/spool/pbs/aux/1234.pbs01",
    "PBS_TASKNUM": "2",
    "PBS_NODENUM": "1",
    "PBS_O_HOST": "login",
    "PBS_O_WORKDIR": "/home/ada",
    "PBS_ENVIRONMENT": "PBS_BATCH",
    "PBS_QUEUE": "gpu",
}
PALS = {
    "PALS_APID": "3d1e0c9a-1c52-4c1e-9d64-1f3f0a5f2b11",
    "PALS_RANKID": "5",
    "PALS_NODEID": "1",
    "PALS_LOCAL_RANKID": "1",
    "PMI_RANK": "5",
    "PMI_SIZE": "8",
    "PMI_LOCAL_RANK": "1",
    "PMI_LOCAL_SIZE": "4",
    "PMI_CONTROL_PORT": "20190",
    "PMI_SHARED_SECRET": "123456789",
}
LSF = {
    "LSB_JOBID": "5678",
    "LSB_HOSTS": "node0 node0 node1 node1",
    "LSB_MCPU_HOSTS": "node0 2 node1 2",
    "LSB_DJOB_NUMPROC": "4",
}
BLAUNCH = LSF | {"LSF_PM_TASKID": "2", "LS_EXEC_T": "START"}
JSRUN = LSF | {
    "JSM_NAMESPACE_RANK": "5",
    "JSM_NAMESPACE_SIZE": "8",
    "JSM_NAMESPACE_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "3",
    "PMIX_RANK": "5",
}
POD = {
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    "KUBERNETES_SERVICE_PORT": "443",
    "KUBERNETES_PORT": "tcp://10.96.0.1:443",
}
PYTORCHJOB = POD | {
    "MASTER_ADDR": "mnist-master-0",
    "MASTER_PORT": "23456",
    "WORLD_SIZE": "2",
    "RANK": "1",
    "PYTHONUNBUFFERED": "0",
    "HOSTNAME": "mnist-worker-0",
}
ELASTIC_PYTORCHJOB = (
    POD
    | TORCHRUN
    | {
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": "mnist-worker-0:23456",
        "PET_NNODES": "1:4",
        "PET_MAX_RESTARTS": "10",
        "MASTER_ADDR": "mnist-worker-0",
        "MASTER_PORT": "41233",
        "HOSTNAME": "mnist-worker-1",
    }
)
TRAINJOB = (
    POD
    | TORCHRUN
    | {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "4",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "llama-node-0-0.llama",
        "PET_MASTER_PORT": "29500",
        "JOB_COMPLETION_INDEX": "1",
        "MASTER_ADDR": "llama-node-0-0.llama",
    }
)
STATEFUL_SET = POD | {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "trainer-0.trainer.ml.svc.cluster.local",
    "MASTER_PORT": "29500",
    "HOSTNAME": "trainer-1",
}
BY_HAND = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
COPIED = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
}
"""What scripts make of srun's own numbers."""
DEEPSPEED = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "CROSS_RANK": "1",
}
