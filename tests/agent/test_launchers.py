"""Which start of an MPI launcher a rank belongs to, and who is a rank under one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ddtop.agent import identity, launchers
from ddtop.procfs import parent_of

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "PMIX_NAMESPACE": "prterun-node0-4711@1",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1"}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
}
SCRIPT = ["python", "sim.py"]


def who(environ, argv=SCRIPT, pid=1):
    found = identity.identify(environ, argv, pid)
    return found.role, found.rank, found.world_size, found.local_rank


def test_a_process_of_mpirun_is_a_rank_before_it_imports_anything():
    assert who(OPEN_MPI) == (identity.RANK, 2, 4, 0)
    assert who(HYDRA) == (identity.RANK, 1, 2, 1)


@pytest.mark.parametrize("words", [["sim.py", "4"], ["-m", "pkg.sim"]])
def test_the_program_that_mpi4py_runs_gives_the_name(words):
    found = identity.identify(OPEN_MPI, ["python", "-m", "mpi4py", *words], 1)
    assert (found.role, found.script) == (identity.RANK, "sim")


def test_torchrun_inside_mpirun_gives_the_rank():
    """One torchrun a node under mpirun: its ranks inherit the variables of mpirun, which count nodes."""
    torchrun = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
    assert who(OPEN_MPI | torchrun) == (identity.RANK, 5, 8, 1)


def test_the_variables_of_srun_alone_make_no_rank_until_mpi_is_entered():
    """`srun bash -c "python prep.py; torchrun ..."` sets them, too."""
    assert who(SLURM)[0] == identity.CANDIDATE
    assert identity.numbers(SLURM, slurm=True) == (3, 8, 1)


def test_inside_mpirun_those_of_srun_are_mpiruns_own():
    """Within an allocation every rank has SLURM_PROCID=0."""
    assert identity.numbers(SLURM | {"SLURM_PROCID": "0"} | OPEN_MPI, slurm=True) == (2, 4, 0)


def test_a_child_of_a_rank_with_its_variables_is_no_second_rank():
    claimed = OPEN_MPI | {identity.CLAIM: f"99:{identity.fingerprint(OPEN_MPI)}"}
    assert who(claimed, pid=100)[0] == identity.CANDIDATE
    assert who(claimed, pid=99)[0] == identity.RANK


@pytest.mark.parametrize("environ", [OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "4"}, HYDRA | {"PMI_SIZE": "x"}])
def test_numbers_that_make_no_sense_make_no_rank(environ):
    assert who(environ)[0] == identity.CANDIDATE


def test_open_mpi_names_the_run_and_its_launchers_pid():
    assert launchers.mpi_start(OPEN_MPI, 1) == ("pmix-prterun-node0-4711@1", "4711", False)


def test_srun_names_job_and_step():
    assert launchers.mpi_start(SLURM, 1) == ("slurm-77.0", "77.0", True)


def test_torchrun_below_srun_has_a_run_of_its_own():
    assert launchers.mpi_start(SLURM | {"RANK": "0"}, 1) is None


def test_hydras_ranks_find_the_control_port_above_a_shell():
    """mpiexec > hydra_pmi_proxy --control-port HOST:PORT > sh > python."""
    code = "import os, subprocess, sys; print(os.getpid(), flush=True); subprocess.run(['sh', '-c', 'read line; true'])"
    proxy = subprocess.Popen(
        [sys.executable, "-c", code, "--control-port", "node0:4711", "--rmk", "user"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert proxy.stdout.readline().strip() == str(proxy.pid).encode()
        assert launchers.mpi_start(HYDRA, proxy.pid) == ("hydra-node0:4711", "4711", False)
    finally:
        proxy.stdin.close()
        proxy.wait(10)
        proxy.stdout.close()


def test_without_a_launcher_in_sight_there_is_no_run():
    assert launchers.mpi_start(HYDRA, 1) is None
    assert launchers.mpi_start({}, os.getppid()) is None


def test_the_parent_of_a_process_is_read_from_proc():
    assert parent_of(os.getpid()) == os.getppid()
    assert parent_of(1 << 22) is None
