"""Jobs among the processes of a host, found by what /proc shows."""

import signal

import pytest

from ddtop.feeds.outside.jobs import Departed, job_with, jobs_of
from tests.feeds.host import TORCHRUN, host, process, rank

SPAWNED = ("/opt/venv/bin/python3", "-c", "from multiprocessing.spawn", "--multiprocessing-fork")
FORKSERVER = ("python3", "-c", "from multiprocessing.forkserver import main")


def numbers(job):
    return {one.rank: one.pid for one in job.ranks}


def test_the_children_of_torchrun_are_one_job():
    (job,) = jobs_of(
        host(process(10, 1, TORCHRUN), rank(11, 10, 0, 2), rank(12, 10, 1, 2), process(99))
    )

    assert numbers(job) == {0: 11, 1: 12}
    assert (job.name, job.launchers, job.world_size) == ("train-10", (10,), 2)
    assert (job.departed, job.notes) == ((), ())


def test_helpers_of_a_rank_inherit_its_number_and_are_no_ranks():
    """DataLoader workers and a shell's Python below a rank have the same variables."""
    (job,) = jobs_of(
        host(
            process(10, 1, TORCHRUN),
            rank(11, 10, 0, 2),
            rank(12, 10, 1, 2),
            rank(13, 11, 0, 2),
            rank(14, 13, 0, 2),
        )
    )

    assert numbers(job) == {0: 11, 1: 12}


def test_several_launchers_with_one_meeting_place_are_one_job():
    (job,) = jobs_of(
        host(
            process(10, 1, TORCHRUN),
            process(20, 1, TORCHRUN),
            rank(11, 10, 0, 4),
            rank(12, 10, 1, 4),
            rank(21, 20, 2, 4),
            rank(22, 20, 3, 4),
        )
    )

    assert job.launchers == (10, 20)
    assert numbers(job) == {0: 11, 1: 12, 2: 21, 3: 22}


def test_two_jobs_with_the_same_variables_are_distinguished_by_their_launchers():
    found = jobs_of(
        host(
            process(10, 1, TORCHRUN),
            process(20, 1, TORCHRUN),
            rank(11, 10, 0, 2),
            rank(12, 10, 1, 2),
            rank(21, 20, 0, 2),
            rank(22, 20, 1, 2),
        )
    )

    assert [job.launchers for job in found] == [(20,), (10,)]


@pytest.mark.parametrize(
    ("launcher", "variables"),
    [
        ("mpirun", ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")),
        ("mpiexec.hydra", ("PMI_RANK", "PMI_SIZE")),
        ("srun", ("SLURM_PROCID", "SLURM_NTASKS")),
    ],
)
def test_ranks_of_mpi_and_slurm_are_found_by_their_own_variables(launcher, variables):
    def of(number):
        return {variables[0]: str(number), variables[1]: "2"}

    (job,) = jobs_of(
        host(
            process(10, 1, (launcher, "-n", "2"), python=False),
            process(11, 10, **of(0)),
            process(12, 10, **of(1)),
        )
    )

    assert numbers(job) == {0: 11, 1: 12}
    assert job.launchers == (10,)


def test_the_task_of_srun_that_starts_torchrun_is_no_rank():
    step = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}
    (job,) = jobs_of(
        host(
            process(9, 1, ("/opt/venv/bin/python3", "start.py"), **step),
            process(10, 9, TORCHRUN, **step),
            rank(11, 10, 0, 2, **step),
            rank(12, 10, 1, 2, **step),
        )
    )

    assert numbers(job) == {0: 11, 1: 12}


def test_children_of_mp_spawn_are_numbered_in_the_order_of_their_start():
    (job,) = jobs_of(
        host(
            process(10),
            process(11, 10, FORKSERVER),
            process(13, 10, SPAWNED),
            process(12, 10, SPAWNED),
            talking=(12, 13),
        )
    )

    assert numbers(job) == {0: 12, 1: 13}
    assert all(one.guessed and one.script == "train" for one in job.ranks)
    assert "the order in which pid 10 started them" in job.notes[0]


def test_dataloader_workers_of_one_process_are_no_job():
    """They are children of multiprocessing too, and have no TCP connections."""
    assert jobs_of(host(process(10), process(11, 10), process(12, 10))) == ()


def test_a_job_that_ddtop_watches_is_not_listed():
    here = host(process(10, 1, TORCHRUN), rank(11, 10, 0, 2), rank(12, 10, 1, 2), watched=(11, 12))

    assert jobs_of(here) == ()


def test_a_rank_without_a_process_has_departed_and_its_zombie_tells_how():
    killed = process(12, 7, state="Z", status=int(signal.SIGKILL))
    (job,) = jobs_of(
        host(process(7, 1, ("bash",), python=False), rank(11, 7, 0, 3), killed, rank(13, 7, 2, 3))
    )

    assert job.departed == (Departed(1, 12, 9, by_torchrun=False),)


def test_a_rank_without_a_process_under_torchrun_has_not_failed():
    """torchrun ends all ranks after the first failure."""
    (job,) = jobs_of(host(process(10, 1, TORCHRUN), rank(11, 10, 0, 3), rank(13, 10, 2, 3)))

    assert job.departed == (Departed(1, by_torchrun=True),)


def test_ranks_on_other_hosts_are_not_taken_for_departed():
    there = {"MASTER_ADDR": "node0", "LOCAL_WORLD_SIZE": "2"}
    (job,) = jobs_of(
        host(process(10, 1, TORCHRUN), rank(11, 10, 0, 4, **there), rank(12, 10, 1, 4, **there))
    )

    assert (job.world_size, job.departed) == (4, ())


def test_a_launcher_or_what_is_above_it_names_the_job():
    here = host(
        process(5, 1, ("bash", "start.sh"), python=False),
        process(10, 5, TORCHRUN),
        rank(11, 10, 0, 2),
        rank(12, 10, 1, 2),
    )

    assert job_with(here, 10) == job_with(here, 5) == jobs_of(here)[0]
    assert job_with(here, 999) is None


def test_a_shell_that_started_two_jobs_is_none_of_them():
    here = host(
        process(5, 1, ("bash",), python=False),
        process(10, 5, TORCHRUN),
        rank(11, 10, 0, 1),
        process(20, 5, TORCHRUN),
        rank(21, 20, 0, 1, MASTER_PORT="29501"),
    )

    assert job_with(here, 5) is None


def test_ranks_that_have_not_met_yet_are_known_by_the_stack_of_one_of_them():
    """Spawned ranks have no variables, and no connection before the first is in
    init_process_group."""
    here = host(
        process(10, argv=("python3", "start.py")),
        process(11, 10, ("python3", "start.py", "child", "0")),
        process(12, 10, ("python3", "start.py", "child", "1")),
    )

    job = job_with(here, 10, lambda pid: pid == 12)

    assert [(one.rank, one.pid, one.guessed) for one in job.ranks] == [(0, 11, True), (1, 12, True)]
    assert job_with(here, 10, lambda pid: False) is None
    assert job_with(here, 10) is None
