"""The variables of schedulers and launchers as they set them: who a rank is there, and that its job has one name on all its hosts."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ddtop.agent import launchers, multi_host, run_name
from ddtop.agent.environment import redacted_environment
from ddtop.agent.identity import RANK, TREE, Identity, identify, numbers

TORCHRUN = {
    "LOCAL_RANK": "1", "RANK": "5", "GROUP_RANK": "1", "ROLE_RANK": "5", "ROLE_NAME": "default", "LOCAL_WORLD_SIZE": "4",
    "WORLD_SIZE": "8", "GROUP_WORLD_SIZE": "2", "ROLE_WORLD_SIZE": "8", "MASTER_ADDR": "node0", "MASTER_PORT": "29500",
    "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0", "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "OMP_NUM_THREADS": "1",
}  # fmt: skip
SBATCH = {
    "SLURM_JOB_ID": "77", "SLURM_JOBID": "77", "SLURM_NNODES": "2", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "2",
    "SLURM_NODELIST": "node[0-1]", "SLURM_JOB_NODELIST": "node[0-1]", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0",
    "SLURM_GTIDS": "0", "SLURMD_NODENAME": "node0", "SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_SUBMIT_HOST": "login",
}  # fmt: skip
STEP = SBATCH | {
    "SLURM_STEP_ID": "0", "SLURM_STEPID": "0", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NODELIST": "node[0-1]",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)", "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURMD_NODENAME": "node1",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1", "SLURM_SRUN_COMM_HOST": "10.0.0.1", "SLURM_SRUN_COMM_PORT": "43212",
}  # fmt: skip
STEP_OF_TORCHRUNS = STEP | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_LOCALID": "0"}
STEP_ON_ONE_NODE = STEP | {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "node1", "SLURM_STEP_NUM_TASKS": "1"}
INTERACTIVE = SBATCH | {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1"}
PMIX_BY_SRUN = {
    "PMIX_NAMESPACE": "slurm.pmix.77.0",
    "PMIX_RANK": "5",
    "PMIX_HOSTNAME": "node1",
    "PMIX_GDS_MODULE": "hash",
}
PMI2_BY_SRUN = {"PMI_RANK": "5", "PMI_SIZE": "8", "PMI_FD": "16", "PMI_JOBID": "77.0"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "OMPI_COMM_WORLD_NODE_RANK": "1", "OMPI_UNIVERSE_SIZE": "8", "PMIX_NAMESPACE": "prterun-node0-4711@1", "PMIX_RANK": "5",
    "PMIX_HOSTNAME": "node1", "PMIX_SERVER_URI41": "prterun-node0-4711@0.1;tcp4://127.0.0.1:38247",
}  # fmt: skip
HYDRA = {"PMI_RANK": "5", "PMI_SIZE": "8", "PMI_FD": "9", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
PBS = {
    "PBS_JOBID": "1234.pbs01", "PBS_NODEFILE": "/var/spool/pbs/aux/1234.pbs01", "PBS_TASKNUM": "2", "PBS_NODENUM": "1",
    "PBS_O_HOST": "login", "PBS_O_WORKDIR": "/home/ada", "PBS_ENVIRONMENT": "PBS_BATCH", "PBS_QUEUE": "gpu",
}  # fmt: skip
PALS = {
    "PALS_APID": "3d1e0c9a-1c52-4c1e-9d64-1f3f0a5f2b11", "PALS_RANKID": "5", "PALS_NODEID": "1", "PALS_LOCAL_RANKID": "1",
    "PMI_RANK": "5", "PMI_SIZE": "8", "PMI_LOCAL_RANK": "1", "PMI_LOCAL_SIZE": "4", "PMI_CONTROL_PORT": "20190",
    "PMI_SHARED_SECRET": "123456789",
}  # fmt: skip
LSF = {
    "LSB_JOBID": "5678",
    "LSB_HOSTS": "node0 node0 node1 node1",
    "LSB_MCPU_HOSTS": "node0 2 node1 2",
    "LSB_DJOB_NUMPROC": "4",
}
BLAUNCH = LSF | {"LSF_PM_TASKID": "2", "LS_EXEC_T": "START"}
JSRUN = LSF | {
    "JSM_NAMESPACE_RANK": "5", "JSM_NAMESPACE_SIZE": "8", "JSM_NAMESPACE_LOCAL_RANK": "1", "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "PMIX_NAMESPACE": "3",
    "PMIX_RANK": "5",
}  # fmt: skip
POD = {
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    "KUBERNETES_SERVICE_PORT": "443",
    "KUBERNETES_PORT": "tcp://10.96.0.1:443",
}
PYTORCHJOB = POD | {
    "MASTER_ADDR": "mnist-master-0", "MASTER_PORT": "23456", "WORLD_SIZE": "2", "RANK": "1", "PYTHONUNBUFFERED": "0",
    "HOSTNAME": "mnist-worker-0",
}  # fmt: skip
ELASTIC_PYTORCHJOB = POD | TORCHRUN | {
    "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "mnist-worker-0:23456", "PET_NNODES": "1:4", "PET_MAX_RESTARTS": "10",
    "MASTER_ADDR": "mnist-worker-0", "MASTER_PORT": "41233", "HOSTNAME": "mnist-worker-1",
}  # fmt: skip
TRAINJOB = POD | TORCHRUN | {
    "PET_NNODES": "2", "PET_NPROC_PER_NODE": "4", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "llama-node-0-0.llama",
    "PET_MASTER_PORT": "29500", "JOB_COMPLETION_INDEX": "1", "MASTER_ADDR": "llama-node-0-0.llama",
}  # fmt: skip
STATEFUL_SET = POD | {
    "RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "trainer-0.trainer.ml.svc.cluster.local", "MASTER_PORT": "29500",
    "HOSTNAME": "trainer-1",
}  # fmt: skip
BY_HAND = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
COPIED = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
"""What scripts make of srun's own numbers."""
DEEPSPEED = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "CROSS_RANK": "1",
}


def rank_of(environ, script="train"):
    """The rank as this environment makes it, at its start or when it enters torch or MPI."""
    found = identify(environ, ["python", f"{script}.py"], os.getpid())
    if found.role == RANK:
        return found
    rank, size, local = numbers(environ, slurm=True)
    return Identity(RANK, script, rank, local, size)


# -- who a rank is


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param(TORCHRUN, (5, 8, 1), id="torchrun"),
        pytest.param(STEP_OF_TORCHRUNS | TORCHRUN, (5, 8, 1), id="one torchrun a node below srun"),
        pytest.param(OPEN_MPI | TORCHRUN, (5, 8, 1), id="torchrun below mpirun"),
        pytest.param(PBS | OPEN_MPI, (5, 8, 1), id="mpiexec of Open MPI below PBS"),
        pytest.param(SBATCH | HYDRA, (5, 8, 1), id="mpiexec of MPICH in a batch script of Slurm"),
        pytest.param(STEP | {"SLURM_PROCID": "0"} | OPEN_MPI, (5, 8, 1), id="mpirun's daemon in a step of Slurm"),
        pytest.param(STEP, (5, 8, 1), id="srun alone"),
        pytest.param(STEP | PMIX_BY_SRUN, (5, 8, 1), id="srun --mpi=pmix"),
        pytest.param(STEP | PMI2_BY_SRUN, (5, 8, 1), id="srun --mpi=pmi2"),
        pytest.param(STEP | COPIED, (5, 8, 1), id="srun, and a script that copies its numbers"),
        pytest.param(PBS | PALS, (5, 8, 1), id="mpiexec of Cray"),
        pytest.param(JSRUN, (5, 8, 1), id="jsrun"),
        pytest.param({name: JSRUN[name] for name in JSRUN if name[:4] not in ("OMPI", "PMIX")}, (5, 8, 1), id="jsrun without MPI"),
        pytest.param(BLAUNCH | TORCHRUN, (5, 8, 1), id="one torchrun a node by blaunch"),
        pytest.param(PYTORCHJOB, (1, 2, None), id="PyTorchJob, a rank a pod"),
        pytest.param(PYTORCHJOB | TORCHRUN, (5, 8, 1), id="PyTorchJob with torchrun"),
        pytest.param(ELASTIC_PYTORCHJOB, (5, 8, 1), id="elastic PyTorchJob"),
        pytest.param(TRAINJOB, (5, 8, 1), id="TrainJob"),
        pytest.param(STATEFUL_SET, (1, 4, None), id="StatefulSet"),
        pytest.param(BY_HAND, (1, 4, None), id="by hand"),
        pytest.param(DEEPSPEED, (5, 8, 1), id="deepspeed"),
    ],
)  # fmt: skip
def test_rank_world_and_local_rank_are_those_that_the_innermost_launcher_gave(environ, expected):
    who = rank_of(environ)

    assert (who.rank, who.world_size, who.local_rank) == expected


@pytest.mark.parametrize("environ", [SBATCH, INTERACTIVE, PBS, LSF, POD], ids=["sbatch", "salloc", "PBS", "LSF", "pod"])
def test_a_batch_script_itself_is_no_rank(environ):
    """`python prep.py` before the launcher: the scheduler's variables alone make nobody a rank."""
    assert identify(environ, ["python", "prep.py"], os.getpid()).role != RANK
    assert numbers(environ | {"SLURM_STEP_NUM_TASKS": ""}, slurm=True) == (None, None, None)


# -- what its job is called


def name(environ, **more):
    return run_name.name_run(rank_of(environ | more), environ | more, os.getppid())[0]


ACROSS = [
    pytest.param(STEP_OF_TORCHRUNS | TORCHRUN, "77.0", id="one torchrun a node below srun"),
    pytest.param(STEP, "77.0", id="srun"),
    pytest.param(STEP | PMIX_BY_SRUN, "77.0", id="srun --mpi=pmix"),
    pytest.param(STEP | PMI2_BY_SRUN, "77.0", id="srun --mpi=pmi2"),
    pytest.param(STEP | COPIED, "77.0", id="srun, and a script that copies its numbers"),
    pytest.param(STEP_OF_TORCHRUNS | DEEPSPEED, "77.0", id="one deepspeed a node below srun"),
    pytest.param(STEP_ON_ONE_NODE | TORCHRUN, "train-node0-29500", id="a step of srun for each node"),
    pytest.param(SBATCH | TORCHRUN, "train-node0-29500", id="sbatch, the other nodes by ssh"),
    pytest.param(SBATCH | OPEN_MPI, "train-4711", id="mpirun in a batch script of Slurm"),
    pytest.param(STEP_ON_ONE_NODE | OPEN_MPI, "train-4711", id="mpirun's daemon in a step of Slurm"),
    pytest.param(OPEN_MPI | TORCHRUN, "train-node0-29500", id="torchrun below mpirun"),
    pytest.param(PBS | OPEN_MPI, "train-4711", id="mpiexec of Open MPI below PBS"),
    pytest.param(PBS | PALS, "1234.pbs01", id="mpiexec of Cray below PBS"),
    pytest.param(PBS | TORCHRUN, "train-node0-29500", id="pbsdsh torchrun"),
    pytest.param(PBS | TORCHRUN | {"MASTER_ADDR": "localhost"}, "1234.pbs01", id="PBS, and no address that others know"),
    pytest.param(JSRUN, "5678", id="jsrun"),
    pytest.param(BLAUNCH | TORCHRUN, "train-node0-29500", id="blaunch torchrun"),
    pytest.param(BLAUNCH | TORCHRUN | {"MASTER_ADDR": ""}, "5678", id="LSF, and no address"),
    pytest.param(PYTORCHJOB, "train-mnist-master-0-23456", id="PyTorchJob, a rank a pod"),
    pytest.param(ELASTIC_PYTORCHJOB, "train-mnist-worker-0-23456", id="elastic PyTorchJob: not the port of this attempt"),
    pytest.param(TRAINJOB, "train-llama-node-0-0-29500", id="TrainJob"),
    pytest.param(STATEFUL_SET, "train-trainer-0-29500", id="headless service"),
    pytest.param(TORCHRUN, "train-node0-29500", id="torchrun"),
    pytest.param(TORCHRUN | {"MASTER_ADDR": "node0.cluster.example"}, "train-node0-29500", id="the whole name of the host"),
    pytest.param(TORCHRUN | {"MASTER_ADDR": "10.0.0.1"}, "train-10.0.0.1-29500", id="an address"),
    pytest.param(TORCHRUN | {"MASTER_ADDR": "localhost"}, f"train-{os.uname().nodename}-29500", id="two torchruns on one host"),
    pytest.param(DEEPSPEED, "train-10.0.0.1-29500", id="deepspeed"),
    pytest.param(BY_HAND, "train-10.0.0.1-29500", id="by hand"),
    pytest.param(BY_HAND | {"MASTER_ADDR": "127.0.0.1", "DDTOP_HUB": "10.0.0.9:7777"}, "train-10.0.0.9-7777", id="DDTOP_HUB alone"),
    pytest.param(TORCHRUN | {"TORCHELASTIC_RUN_ID": "llama"}, "llama", id="an id that a person chose"),
    pytest.param(STEP | {"DDTOP_JOB": "mine"}, "mine", id="DDTOP_JOB"),
]  # fmt: skip


@pytest.mark.parametrize(("environ", "expected"), ACROSS)
def test_a_job_of_several_hosts_is_called_by_what_all_of_them_were_told(home, environ, expected):
    assert name(environ) == expected


OTHER_HOST = {
    "RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "PMIX_RANK": "0", "PMIX_HOSTNAME": "node0", "PMI_RANK": "0", "MPI_LOCALRANKID": "0", "PMI_LOCAL_RANK": "0", "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURMD_NODENAME": "node0", "JSM_NAMESPACE_RANK": "0", "PBS_NODENUM": "0",
    "PALS_RANKID": "0", "PALS_NODEID": "0", "LSF_PM_TASKID": "1", "PET_NODE_RANK": "0",
}  # fmt: skip


@pytest.mark.parametrize(("environ", "expected"), ACROSS)
def test_it_is_called_so_on_its_first_host_too(home, environ, expected):
    """Each host has another launcher, another first watched process and another pid: none of that may be in the name."""
    first = {key: OTHER_HOST.get(key, value) for key, value in environ.items()}

    assert name(first, **{TREE: f"submit-{os.getpid()}|1.2"}) == expected


def test_the_first_pod_of_some_operators_calls_itself_localhost(home):
    """They tell the master `localhost`, and the workers the name of the master."""
    first = PYTORCHJOB | {"MASTER_ADDR": "localhost", "RANK": "0", "HOSTNAME": "mnist-master-0"}

    assert name(first) == name(PYTORCHJOB)


def test_a_process_that_was_told_the_address_as_an_argument_has_that_name(home):
    """mp.spawn on each host with init_method tcp://node0:23456: nothing of it is in the environment."""
    found = run_name.name_run(Identity(RANK, "main", 9, None, 16), {}, os.getppid(), "node0:23456")

    assert found[0] == "main-node0-23456"


def test_a_wrong_port_does_not_give_two_names_on_one_host(home):
    """Both wait for each other: they must stand in one table, under the name of whoever came first."""
    one = run_name.name_run(rank_of(BY_HAND), BY_HAND, os.getppid())
    other = BY_HAND | {"RANK": "2", "MASTER_PORT": "29501"}

    assert run_name.name_run(rank_of(other), other, os.getppid())[:2] == one[:2]


def test_a_long_name_keeps_the_address_that_tells_it_from_others(home):
    who = Identity(RANK, "s" * 80, 1, None, 4)
    job = run_name.name_run(who, BY_HAND, os.getppid())[0]

    assert len(job) == 64
    assert job.endswith("-10.0.0.1-29500")


ON_ONE_HOST = {"LOCAL_WORLD_SIZE": "8", "GROUP_WORLD_SIZE": "1", "GROUP_RANK": "0"}


@pytest.mark.parametrize(
    "environ",
    [
        pytest.param(TORCHRUN | ON_ONE_HOST, id="torchrun"),
        pytest.param(TORCHRUN | ON_ONE_HOST | {"MASTER_ADDR": "localhost"}, id="torchrun --standalone"),
        pytest.param(SBATCH | TORCHRUN | ON_ONE_HOST, id="torchrun on the first node of an allocation"),
        pytest.param(INTERACTIVE | TORCHRUN | ON_ONE_HOST, id="torchrun in a shell of salloc"),
        pytest.param(STEP_OF_TORCHRUNS | TORCHRUN | ON_ONE_HOST, id="srun torchrun --standalone: a job on each node"),
        pytest.param(TORCHRUN | ON_ONE_HOST | {"DDTOP_HUB": "node0:7777"}, id="DDTOP_HUB is set for all jobs"),
        pytest.param(BY_HAND | {"MASTER_ADDR": "127.0.0.1"}, id="by hand"),
        pytest.param(STEP_ON_ONE_NODE | COPIED | {"SLURM_STEP_NUM_TASKS": "8"}, id="all tasks of srun on one node"),
    ],
)
def test_a_job_on_one_host_keeps_its_own_name(home, environ):
    parent = os.getpid() if "TORCHELASTIC_RUN_ID" in environ else os.getppid()

    assert run_name.name_run(rank_of(environ), environ, parent)[0] == f"train-{os.getpid()}"


def test_a_step_of_srun_that_numbers_the_ranks_is_the_run_on_all_hosts(home):
    assert {run_name.name_run(rank_of(one), one, os.getppid())[1] for one in (STEP, STEP | COPIED)} == {"slurm-77.0"}


# -- torchrun's own words


@pytest.mark.parametrize(
    ("words", "environ", "expected"),
    [
        (["--nnodes", "2", "--rdzv-endpoint", "node0:29400", "--rdzv_backend=c10d"], {}, ("node0:29400", 2)),
        (["--nnodes=1:4", "--rdzv_endpoint=node0"], {}, ("node0", 4)),
        (["--nnodes=2", "--master-addr", "node0", "--master-port=1234"], {}, ("node0:1234", 2)),
        (["--nnodes=2", "--master_addr=node0"], {}, ("node0:29500", 2)),
        (["--nproc-per-node", "4"], {}, (None, 1)),
        (["--standalone", "--nproc-per-node", "4"], {"PET_NNODES": "2", "PET_RDZV_ENDPOINT": "a:1"}, ("a:1", 1)),
        ([], {"PET_NNODES": "2", "PET_RDZV_ENDPOINT": "a:1"}, ("a:1", 2)),
        (["--nnodes", "3"], {"PET_NNODES": "2", "PET_MASTER_ADDR": "a", "PET_MASTER_PORT": "5"}, ("a:5", 3)),
        (["--nnodes", "lots"], {}, (None, 1)),
    ],
)
def test_where_the_nodes_meet_is_read_from_torchruns_own_command_line(tmp_path, words, environ, expected):
    """Its pid is the ranks' parent, or their grandparent where a shell script stands between."""
    program = tmp_path / "torchrun"
    program.write_text("import subprocess; subprocess.run(['sh', '-c', 'echo $$; read line; true'])")
    torchrun = subprocess.Popen(
        [sys.executable, str(program), *words, "train.py", "--nnodes", "99"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        shell = int(torchrun.stdout.readline())
        assert (launchers.meeting(environ, torchrun.pid), launchers.meeting(environ, shell)) == (expected, expected)
    finally:
        torchrun.stdin.close()
        torchrun.wait(10)
        torchrun.stdout.close()


def test_an_elastic_job_has_its_name_before_the_second_node_comes(home):
    """torchrun --nnodes 1:4: the first node trains alone for a while, and keeps its name when others join."""
    alone = ELASTIC_PYTORCHJOB | ON_ONE_HOST | {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "RANK": "1"}

    assert name(alone) == name(ELASTIC_PYTORCHJOB)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1", "[::1]", "", "0.0.0.0"])
def test_an_address_that_means_every_host_itself_names_nothing(host):
    assert multi_host._is_elsewhere(f"{host}:29500") is False


def test_intels_proxies_tell_their_mpiexec_by_the_address_that_they_call(home):
    code = "import sys; print(1, flush=True); sys.stdin.read()"
    words = ["--upstream-host", "node0", "--upstream-port", "34921", "--tree-width", "16", "--tree-level"]
    for level, expected in (("1", launchers.Start("hydra-node0:34921", "34921")), ("2", None)):
        proxy = subprocess.Popen(
            [sys.executable, "-c", code, *words, level], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            proxy.stdout.readline()
            assert launchers.mpi_start(HYDRA, proxy.pid) == expected
        finally:
            proxy.stdin.close()
            proxy.wait(10)
            proxy.stdout.close()


# -- what of it the relay learns

NEEDED = (
    "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE",
    "PMIX_HOSTNAME", "SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_NODELIST", "SLURM_STEP_NODELIST", "SLURM_JOB_ID", "SLURM_STEP_ID",
    "SLURM_PROCID", "SLURM_LAUNCH_NODE_IPADDR", "PBS_JOBID", "LSB_JOBID", "LSB_HOSTS", "LSB_MCPU_HOSTS", "KUBERNETES_SERVICE_HOST",
    "PET_NNODES", "PET_RDZV_ENDPOINT", "PET_MASTER_ADDR", "JSM_NAMESPACE_LOCAL_RANK", "PALS_APID",
)  # fmt: skip
EVERYTHING = TRAINJOB | ELASTIC_PYTORCHJOB | JSRUN | PBS | PALS | HYDRA | OPEN_MPI | STEP | TORCHRUN


def test_the_relay_learns_all_that_says_where_the_ranks_are():
    shown = redacted_environment(
        EVERYTHING | {"DDTOP_HUB": "node0:1", "NCCL_SOCKET_IFNAME": "ib0", "GLOO_SOCKET_IFNAME": "eth0"}
    )

    assert [one for one in (*NEEDED, "DDTOP_HUB", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") if one not in shown] == []


def test_nothing_secret_goes_with_it():
    secret = {"DDTOP_KEY": "hush", "PET_RDZV_CONF": "password=hush", "TORCH_STORE": "etcd://ada:hush@node0:2379"}
    shown = redacted_environment(EVERYTHING | secret)

    assert "hush" not in str(shown)
    assert "123456789" not in str(shown)
    assert shown["TORCH_STORE"] == "etcd://(redacted)@node0:2379"


def test_the_services_of_a_namespace_do_not_push_out_what_matters():
    """Kubernetes sets seven variables for each service, and one is called torch."""
    services = {f"TORCH_{number}_SERVICE_HOST": "10.0.0.1" for number in range(5000)}
    shown = redacted_environment(services | EVERYTHING)

    assert len(shown) == 128
    assert [one for one in NEEDED if one not in shown] == []
