"""The answers of the launcher table when several launchers have set variables."""

import pytest

from ddtop import launch
from tests.launch.environments import (
    BLAUNCH,
    BY_HAND,
    COPIED,
    DEEPSPEED,
    ELASTIC_PYTORCHJOB,
    HYDRA,
    INTERACTIVE,
    JSRUN,
    LSF,
    OPEN_MPI,
    PALS,
    PBS,
    PMI2_BY_SRUN,
    PMIX_BY_SRUN,
    POD,
    PYTORCHJOB,
    SBATCH,
    STATEFUL_SET,
    STEP,
    STEP_OF_TORCHRUNS,
    TORCHRUN,
    TRAINJOB,
)


def nobody():
    """No parent process gives any information."""
    return iter(())


# -- numbers


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param(TORCHRUN, (5, 8, 1), id="torchrun"),
        pytest.param(STEP_OF_TORCHRUNS | TORCHRUN, (5, 8, 1), id="one torchrun a node below srun"),
        pytest.param(OPEN_MPI | TORCHRUN, (5, 8, 1), id="torchrun below mpirun"),
        pytest.param(PBS | OPEN_MPI, (5, 8, 1), id="mpiexec of Open MPI below PBS"),
        pytest.param(SBATCH | HYDRA, (5, 8, 1), id="mpiexec of MPICH in a batch script of Slurm"),
        pytest.param(
            STEP | {"SLURM_PROCID": "0"} | OPEN_MPI,
            (5, 8, 1),
            id="mpirun's daemon in a step of Slurm",
        ),
        pytest.param(STEP, (5, 8, 1), id="srun alone"),
        pytest.param(STEP | PMIX_BY_SRUN, (5, 8, 1), id="srun --mpi=pmix"),
        pytest.param(STEP | PMI2_BY_SRUN, (5, 8, 1), id="srun --mpi=pmi2"),
        pytest.param(STEP | COPIED, (5, 8, 1), id="srun, and a script that copies its numbers"),
        pytest.param(PBS | PALS, (5, 8, 1), id="mpiexec of Cray"),
        pytest.param(JSRUN, (5, 8, 1), id="jsrun"),
        pytest.param(
            {name: JSRUN[name] for name in JSRUN if name[:4] not in ("OMPI", "PMIX")},
            (5, 8, 1),
            id="jsrun without MPI",
        ),
        pytest.param(BLAUNCH | TORCHRUN, (5, 8, 1), id="one torchrun a node by blaunch"),
        pytest.param(PYTORCHJOB, (1, 2, None), id="PyTorchJob, a rank a pod"),
        pytest.param(PYTORCHJOB | TORCHRUN, (5, 8, 1), id="PyTorchJob with torchrun"),
        pytest.param(ELASTIC_PYTORCHJOB, (5, 8, 1), id="elastic PyTorchJob"),
        pytest.param(TRAINJOB, (5, 8, 1), id="TrainJob"),
        pytest.param(STATEFUL_SET, (1, 4, None), id="StatefulSet"),
        pytest.param(BY_HAND, (1, 4, None), id="by hand"),
        pytest.param(DEEPSPEED, (5, 8, 1), id="deepspeed"),
    ],
)
def test_rank_world_and_local_rank_are_those_that_the_innermost_launcher_gave(environ, expected):
    assert launch.numbers(environ, any_task=True) == expected


@pytest.mark.parametrize(
    "environ", [SBATCH, INTERACTIVE, PBS, LSF, POD], ids=["sbatch", "salloc", "PBS", "LSF", "pod"]
)
def test_a_batch_script_itself_is_no_rank(environ):
    """`python prep.py` runs before the launcher: the scheduler's variables alone make no process a
    rank.
    """
    assert launch.numbers(environ) == (None, None, None)
    assert launch.numbers(environ | {"SLURM_STEP_NUM_TASKS": ""}, any_task=True) == (
        None,
        None,
        None,
    )


def test_the_variables_of_srun_alone_make_no_rank_until_mpi_is_entered():
    """`srun bash -c "python prep.py; torchrun ..."` sets them, too."""
    assert launch.numbers(STEP) == (None, None, None)


def test_jsruns_numbers_are_no_ranks_until_mpi_is_entered():
    """jsrun starts programs of any kind."""
    environ = {name: value for name, value in JSRUN.items() if name.startswith("JSM")}

    assert launch.numbers(environ) == (None, None, None)
    assert launch.numbers(environ, any_task=True) == (5, 8, 1)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (TORCHRUN, (5, 8, 1)),
        (OPEN_MPI, (5, 8, 1)),
        (HYDRA, (5, 8, 1)),
        (JSRUN, (5, 8, 1)),
        ({"PMIX_RANK": "5", "SLURM_PROCID": "4", "SLURM_NTASKS": "8"}, (5, 8, None)),
        ({"RANK": "5"}, (5, None, None)),
        ({"RANK": "x", "LOCAL_RANK": "-1"}, (None, None, None)),
    ],
)
def test_each_number_can_be_asked_for_alone(environ, expected):
    """`--pid` shows a process of which only one of the two numbers is known."""
    found = (launch.rank(environ), launch.world_size(environ), launch.local_rank(environ))

    assert found == expected


def test_a_task_of_srun_is_no_rank_for_who_asks_for_launched_ranks_only():
    assert launch.rank(SBATCH) == 0
    assert launch.rank(SBATCH, any_task=False) is None


# -- the sizes that show whether there are other hosts


@pytest.mark.parametrize("environ", [TORCHRUN, OPEN_MPI, HYDRA, PALS, JSRUN])
def test_ranks_on_this_host_and_ranks_at_all_are_those_of_one_launcher(environ):
    environ = {"JSM_NAMESPACE_LOCAL_SIZE": "4"} | environ

    assert launch.local_size(environ) == 4
    assert launch.local_and_world_size(environ) == (4, 8)


def test_torchruns_sizes_count_before_those_of_the_mpirun_around_it():
    environ = OPEN_MPI | TORCHRUN | {"LOCAL_WORLD_SIZE": "8"}

    assert launch.local_and_world_size(environ) == (8, 8)


# -- jobs


@pytest.mark.parametrize(
    ("environ", "job"),
    [
        (SBATCH, "77"),
        (PBS, "1234.pbs01"),
        (LSF, "5678"),
        (POD | {"JOB_NAME": "llama"}, "llama"),
        ({"JOB_NAME": "a program's own"}, None),
        (POD, None),
        (TORCHRUN, None),
    ],
)
def test_the_batch_system_names_the_job(environ, job):
    assert launch.batch_job(environ) == job


@pytest.mark.parametrize("environ", [SBATCH, PBS, LSF, POD])
def test_schedulers_are_known_by_one_variable(environ):
    assert launch.in_batch_job(environ)


@pytest.mark.parametrize("environ", [{}, TORCHRUN, OPEN_MPI, HYDRA])
def test_a_launcher_alone_is_no_scheduler(environ):
    assert not launch.in_batch_job(environ)


# -- starts


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (STEP | OPEN_MPI, ("pmix-prterun-node0-4711@1", "4711", False)),
        (STEP | PMIX_BY_SRUN, ("slurm-77.0", "77.0", True)),
        (JSRUN, ("jsm-5678-3", "5678", True)),
        (PBS | PALS, (f"pals-{PALS['PALS_APID']}", "1234.pbs01", True)),
        (STEP_OF_TORCHRUNS | TORCHRUN, None),
        (HYDRA, None),
        ({}, None),
    ],
)
def test_the_innermost_launcher_that_names_its_start_names_the_run(environ, expected):
    assert launch.find_start(environ, nobody) == expected


# -- hosts


@pytest.mark.parametrize(
    ("environ", "hosts"),
    [
        ({"SLURM_NODELIST": "node[003-010,12],other"}, ("node003",)),
        ({"SLURM_STEP_NODELIST": "a-1,b"}, ("a-1",)),
        ({"LSB_HOSTS": "h1 h1 h2"}, ("h1",)),
        ({"PMI_PORT": "login1:41234"}, ("login1",)),
        (
            {"OMPI_MCA_orte_hnp_uri": "22;tcp://10.1.2.3,192.168.0.1:5555"},
            ("10.1.2.3",),
        ),
        (
            {"PMI_PORT": "login1:1", "SLURM_NODELIST": "a1", "SLURM_LAUNCH_NODE_IPADDR": "::1"},
            ("a1", "login1", "::1"),
        ),
        ({}, ()),
    ],
)
def test_the_first_host_of_a_list_comes_before_where_the_launcher_runs(environ, hosts):
    assert launch.likely_first_hosts(environ) == hosts
