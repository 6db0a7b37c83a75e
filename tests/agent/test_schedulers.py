"""Under each launcher a job has one name on all hosts, and the relay can place the ranks."""

import os

import pytest

from ddtop import launch
from ddtop.agent import run_name
from ddtop.agent.environment import redacted_environment
from ddtop.agent.identity import RANK, TREE, Identity, identify
from tests.launch.environments import (
    BLAUNCH,
    BY_HAND,
    COPIED,
    DEEPSPEED,
    ELASTIC_PYTORCHJOB,
    HYDRA,
    INTERACTIVE,
    JSRUN,
    OPEN_MPI,
    PALS,
    PBS,
    PMI2_BY_SRUN,
    PMIX_BY_SRUN,
    PYTORCHJOB,
    SBATCH,
    STATEFUL_SET,
    STEP,
    STEP_OF_TORCHRUNS,
    STEP_ON_ONE_NODE,
    TORCHRUN,
    TRAINJOB,
)


def rank_of(environ, script="train"):
    """The rank of this environment, at its start or when it enters torch or MPI."""
    found = identify(environ, ["python", f"{script}.py"], os.getpid())
    if found.role == RANK:
        return found
    rank, size, local = launch.numbers(environ, any_task=True)
    return Identity(RANK, script, rank, local, size)


# -- what its job is called


def name(environ, **more):
    return run_name.name_run(rank_of(environ | more), environ | more, os.getppid())[0]


JSRUN_WITHOUT_MPI = {name: JSRUN[name] for name in JSRUN if name[:4] not in ("OMPI", "PMIX")}
JSRUN_WITHOUT_MPI |= {"JSM_NAMESPACE_LOCAL_SIZE": "4"}
ACROSS = [
    pytest.param(STEP_OF_TORCHRUNS | TORCHRUN, "77.0", id="one torchrun a node below srun"),
    pytest.param(STEP, "77.0", id="srun"),
    pytest.param(STEP | PMIX_BY_SRUN, "77.0", id="srun --mpi=pmix"),
    pytest.param(STEP | PMI2_BY_SRUN, "77.0", id="srun --mpi=pmi2"),
    pytest.param(STEP | COPIED, "77.0", id="srun, and a script that copies its numbers"),
    pytest.param(STEP_OF_TORCHRUNS | DEEPSPEED, "77.0", id="one deepspeed a node below srun"),
    pytest.param(
        STEP_ON_ONE_NODE | TORCHRUN, "train-node0-29500", id="a step of srun for each node"
    ),
    pytest.param(SBATCH | TORCHRUN, "train-node0-29500", id="sbatch, the other nodes by ssh"),
    pytest.param(SBATCH | OPEN_MPI, "train-4711", id="mpirun in a batch script of Slurm"),
    pytest.param(
        STEP_ON_ONE_NODE | OPEN_MPI, "train-4711", id="mpirun's daemon in a step of Slurm"
    ),
    pytest.param(OPEN_MPI | TORCHRUN, "train-node0-29500", id="torchrun below mpirun"),
    pytest.param(PBS | OPEN_MPI, "train-4711", id="mpiexec of Open MPI below PBS"),
    pytest.param(PBS | PALS, "1234.pbs01", id="mpiexec of Cray below PBS"),
    pytest.param(PBS | TORCHRUN, "train-node0-29500", id="pbsdsh torchrun"),
    pytest.param(PBS | TORCHRUN | {"MASTER_ADDR": "localhost"}, "1234.pbs01",
     id="PBS, and no address that others know"),
    pytest.param(JSRUN, "5678", id="jsrun"),
    pytest.param(JSRUN_WITHOUT_MPI, "5678", id="jsrun without MPI"),
    pytest.param(BLAUNCH | TORCHRUN, "train-node0-29500", id="blaunch torchrun"),
    pytest.param(BLAUNCH | TORCHRUN | {"MASTER_ADDR": ""}, "5678", id="LSF, and no address"),
    pytest.param(PYTORCHJOB, "train-mnist-master-0-23456", id="PyTorchJob, a rank a pod"),
    pytest.param(ELASTIC_PYTORCHJOB, "train-mnist-worker-0-23456",
     id="elastic PyTorchJob: not the port of this attempt"),
    pytest.param(TRAINJOB, "train-llama-node-0-0-29500", id="TrainJob"),
    pytest.param(STATEFUL_SET, "train-trainer-0-29500", id="headless service"),
    pytest.param(TORCHRUN, "train-node0-29500", id="torchrun"),
    pytest.param(TORCHRUN | {"MASTER_ADDR": "node0.cluster.example"}, "train-node0-29500",
     id="the whole name of the host"),
    pytest.param(TORCHRUN | {"MASTER_ADDR": "10.0.0.1"}, "train-10.0.0.1-29500", id="an address"),
    pytest.param(TORCHRUN | {"MASTER_ADDR": "localhost"}, f"train-{os.uname().nodename}-29500",
     id="two torchruns on one host"),
    pytest.param(DEEPSPEED, "train-10.0.0.1-29500", id="deepspeed"),
    pytest.param(BY_HAND, "train-10.0.0.1-29500", id="by hand"),
    pytest.param(BY_HAND | {"MASTER_ADDR": "127.0.0.1", "DDTOP_HUB": "10.0.0.9:7777"},
     "train-10.0.0.9-7777", id="DDTOP_HUB alone"),
    pytest.param(
        TORCHRUN | {"TORCHELASTIC_RUN_ID": "llama"}, "llama", id="an id that a person chose"
    ),
    pytest.param(STEP | {"DDTOP_JOB": "mine"}, "mine", id="DDTOP_JOB"),
]  # fmt: skip


@pytest.mark.parametrize(("environ", "expected"), ACROSS)
def test_a_job_of_several_hosts_is_called_by_what_all_of_them_were_reported(
    home, environ, expected
):
    assert name(environ) == expected


OTHER_HOST = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "GROUP_RANK": "0",
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "PMIX_RANK": "0",
    "PMIX_HOSTNAME": "node0",
    "PMI_RANK": "0",
    "MPI_LOCALRANKID": "0",
    "PMI_LOCAL_RANK": "0",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURMD_NODENAME": "node0",
    "JSM_NAMESPACE_RANK": "0",
    "PBS_NODENUM": "0",
    "PALS_RANKID": "0",
    "PALS_NODEID": "0",
    "LSF_PM_TASKID": "1",
    "PET_NODE_RANK": "0",
}


@pytest.mark.parametrize(("environ", "expected"), ACROSS)
def test_it_is_called_so_on_its_first_host_too(home, environ, expected):
    """Launcher, first process and pid differ on each host: none may be part of the name."""
    first = {key: OTHER_HOST.get(key, value) for key, value in environ.items()}

    assert name(first, **{TREE: f"submit-{os.getpid()}|1.2"}) == expected


def test_the_first_pod_of_some_operators_calls_itself_localhost(home):
    """The master gets `localhost`, and the workers get the name of the master."""
    first = PYTORCHJOB | {"MASTER_ADDR": "localhost", "RANK": "0", "HOSTNAME": "mnist-master-0"}

    assert name(first) == name(PYTORCHJOB)


def test_a_process_that_was_told_the_address_as_an_argument_has_that_name(home):
    """mp.spawn with init_method tcp://node0:23456: the environment shows nothing."""
    found = run_name.name_run(Identity(RANK, "main", 9, None, 16), {}, os.getppid(), "node0:23456")

    assert found[0] == "main-node0-23456"


def test_a_wrong_port_does_not_give_two_names_on_one_host(home):
    """Both wait for each other, in one table, under the name that the first made."""
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
        pytest.param(
            TORCHRUN | ON_ONE_HOST | {"MASTER_ADDR": "localhost"}, id="torchrun --standalone"
        ),
        pytest.param(
            SBATCH | TORCHRUN | ON_ONE_HOST, id="torchrun on the first node of an allocation"
        ),
        pytest.param(INTERACTIVE | TORCHRUN | ON_ONE_HOST, id="torchrun in a shell of salloc"),
        pytest.param(
            STEP_OF_TORCHRUNS | TORCHRUN | ON_ONE_HOST,
            id="srun torchrun --standalone: a job on each node",
        ),
        pytest.param(
            TORCHRUN | ON_ONE_HOST | {"DDTOP_HUB": "node0:7777"}, id="DDTOP_HUB is set for all jobs"
        ),
        pytest.param(BY_HAND | {"MASTER_ADDR": "127.0.0.1"}, id="by hand"),
        pytest.param(
            STEP_ON_ONE_NODE | COPIED | {"SLURM_STEP_NUM_TASKS": "8"},
            id="all tasks of srun on one node",
        ),
    ],
)
def test_a_job_on_one_host_keeps_its_own_name(home, environ):
    parent = os.getpid() if "TORCHELASTIC_RUN_ID" in environ else os.getppid()

    assert run_name.name_run(rank_of(environ), environ, parent)[0] == f"train-{os.getpid()}"


def test_a_step_of_srun_that_numbers_the_ranks_is_the_run_on_all_hosts(home):
    assert {
        run_name.name_run(rank_of(one), one, os.getppid())[1] for one in (STEP, STEP | COPIED)
    } == {"slurm-77.0"}


def test_an_elastic_job_has_its_name_before_the_second_node_comes(home):
    """torchrun --nnodes 1:4: the first node trains alone, and keeps its name."""
    alone = (
        ELASTIC_PYTORCHJOB | ON_ONE_HOST | {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "RANK": "1"}
    )

    assert name(alone) == name(ELASTIC_PYTORCHJOB)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1", "[::1]", "", "0.0.0.0"])
def test_an_address_that_means_every_host_itself_names_nothing(host):
    assert run_name._is_elsewhere(f"{host}:29500") is False


# -- what of it the relay learns

NEEDED = (
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "PMI_LOCAL_SIZE",
    "PMIX_HOSTNAME",
    "SLURM_STEP_NUM_NODES",
    "SLURM_NNODES",
    "SLURM_NODELIST",
    "SLURM_STEP_NODELIST",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_PROCID",
    "SLURM_LAUNCH_NODE_IPADDR",
    "PBS_JOBID",
    "LSB_JOBID",
    "LSB_HOSTS",
    "LSB_MCPU_HOSTS",
    "KUBERNETES_SERVICE_HOST",
    "PET_NNODES",
    "PET_RDZV_ENDPOINT",
    "PET_MASTER_ADDR",
    "JSM_NAMESPACE_LOCAL_RANK",
    "PALS_APID",
)
EVERYTHING = TRAINJOB | ELASTIC_PYTORCHJOB | JSRUN | PBS | PALS | HYDRA | OPEN_MPI | STEP | TORCHRUN


def test_the_relay_learns_all_that_says_where_the_ranks_are():
    shown = redacted_environment(
        EVERYTHING
        | {"DDTOP_HUB": "node0:1", "NCCL_SOCKET_IFNAME": "ib0", "GLOO_SOCKET_IFNAME": "eth0"}
    )

    assert [
        one
        for one in (*NEEDED, "DDTOP_HUB", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
        if one not in shown
    ] == []


def test_nothing_secret_goes_with_it():
    secret = {
        "DDTOP_KEY": "hush",
        "PET_RDZV_CONF": "password=hush",
        "TORCH_STORE": "etcd://ada:hush@node0:2379",
    }
    shown = redacted_environment(EVERYTHING | secret)

    assert "hush" not in str(shown)
    assert "123456789" not in str(shown)
    assert shown["TORCH_STORE"] == "etcd://(redacted)@node0:2379"


def test_the_services_of_a_namespace_do_not_push_out_what_matters():
    """Kubernetes sets seven variables for each service, and one service is called torch."""
    services = {f"TORCH_{number}_SERVICE_HOST": "10.0.0.1" for number in range(5000)}
    shown = redacted_environment(services | EVERYTHING)

    assert len(shown) == 128
    assert [one for one in NEEDED if one not in shown] == []
