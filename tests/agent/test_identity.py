"""Who a process is, by its environment and its command line."""

import pytest

from ddtop import launch
from ddtop.agent.identity import CANDIDATE, CLAIM, IGNORED, LAUNCHER, RANK, identify

TORCHRUN = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
}
PID = 4730


def role(line, environ=()):
    return identify(dict(environ), line.split(), PID).role


# -- without a launcher's variables


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("python train.py", CANDIDATE),
        ("python -u /home/ada/train.py --lr 0.1", CANDIDATE),
        ("python -m pkg.train --lr 0.1", CANDIDATE),
        ("python -X faulthandler -W error train.py", CANDIDATE),
        ("python -c pass", CANDIDATE),
        ("python", CANDIDATE),
        ("python - x", CANDIDATE),
        ("/usr/bin/python /usr/bin/torchrun --nproc-per-node 4 train.py", LAUNCHER),
        ("python -m torch.distributed.run --nproc-per-node 4 train.py", LAUNCHER),
        ("python -um torch.distributed.launch train.py", LAUNCHER),
        ("python /env/bin/accelerate launch train.py", LAUNCHER),
        ("python /env/bin/deepspeed train.py", LAUNCHER),
        ("python /env/bin/pip install torch", IGNORED),
        ("python -m pip install torch", IGNORED),
        ("python /env/bin/ray start --head", IGNORED),
        ("python -m pip._internal install", IGNORED),
        ("python /env/bin/ddtop attach", IGNORED),
        ("python -m ddtop jobs", IGNORED),
        ("python -m ddtop.relay --job x --run y", IGNORED),
        ("python -c from multiprocessing.resource_tracker import main;main(5)", IGNORED),
        ("python -c from multiprocessing.forkserver import main;", CANDIDATE),
        ("python /env/lib/torch/_inductor/compile_worker/__main__.py --workers=4", IGNORED),
        ("python -m torch._inductor.compile_worker", IGNORED),
        (
            (
                "python -c from multiprocessing.spawn import spawn_main; spawn_main()"
                " --multiprocessing-fork"
            ),
            CANDIDATE,
        ),
    ],
)
def test_role_without_a_launchers_variables(line, expected):
    assert role(line) == expected


# -- with a launcher's variables


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("python -u train.py", RANK),
        ("python -m pkg.train", RANK),
        ("python -c pass", CANDIDATE),
        ("python", CANDIDATE),
        ("python -m pip install x", IGNORED),
        ("python /env/bin/ddtop status", IGNORED),
        (
            (
                "python -c from multiprocessing.spawn import spawn_main; spawn_main()"
                " --multiprocessing-fork"
            ),
            CANDIDATE,
        ),
        ("python -c from multiprocessing.resource_tracker import main;main(5)", IGNORED),
    ],
)
def test_role_with_a_launchers_variables(line, expected):
    """If a rank runs pip, a one-liner or a worker, these inherit all its variables."""
    assert role(line, TORCHRUN) == expected


def test_a_rank_knows_all_its_numbers():
    who = identify(
        TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "2"}, ["python", "-u", "/home/ada/train.py"], PID
    )

    assert (who.rank, who.local_rank, who.world_size, who.attempt) == (3, 1, 8, 2)
    assert (who.script, who.elastic) == ("train", True)


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "x"},
        {"RANK": ""},
        {"RANK": "-1"},
        {"RANK": "8"},
        {"WORLD_SIZE": "0"},
        {"WORLD_SIZE": ""},
        {"RANK": "٣"},
        {"WORLD_SIZE": "99999999999999"},
        {"RANK": "1.5"},
    ],
)
def test_variables_that_make_no_rank_make_a_candidate(variables):
    """RANK is a common word: a chess program may export it too."""
    assert role("python train.py", TORCHRUN | variables) == CANDIDATE


# -- claims


def claim(pid, environ):
    return dict(environ) | {CLAIM: f"{pid}:{launch.fingerprint(environ)}"}


def test_a_ranks_subprocess_is_not_the_rank():
    """train.py calls `python eval.py`, which inherits RANK=3."""
    assert role("python eval.py", claim(PID - 1, TORCHRUN)) == CANDIDATE


def test_the_rank_itself_after_an_exec_is_still_the_rank():
    """torchrun starts a wrapper that execs the training, so both have the same pid."""
    assert role("python train.py", claim(PID, TORCHRUN)) == RANK


@pytest.mark.parametrize(
    "fresh",
    [
        {"RANK": "4"},
        {"LOCAL_RANK": "0"},
        {"MASTER_PORT": "29501"},
        {"TORCHELASTIC_RESTART_COUNT": "1"},
    ],
)
def test_fresh_variables_of_a_launcher_override_an_inherited_mark(fresh):
    """A rank itself runs torchrun, whose ranks are another job's."""
    assert role("python inner.py", claim(PID - 1, TORCHRUN) | fresh) == RANK


# -- names


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("python /home/ada/train.py", "train"),
        ("python -m pkg.train", "train"),
        ("python -m pkg.train.__main__", "train"),
        ("python /home/ada/job/__main__.py", "job"),
        ("python -c pass", "python"),
        ("python -X dev -m pkg", "pkg"),
        ("python ./run", "run"),
        ("python train.py +a=b hydra.run.dir=out", "train"),
        ("python -m pkg.train +a=b", "train"),
        ("python /env/ray/_private/workers/default_worker.py --node-ip-address=10.0.0.1", "python"),
    ],
)
def test_a_script_is_named_as_people_know_it(line, name):
    assert identify({}, line.split(), PID).script == name


def test_an_empty_command_line_is_nobody():
    """An embedded interpreter has no useful sys.orig_argv."""
    assert identify({}, [], PID).role == CANDIDATE
    assert identify({}, [""], PID).role == CANDIDATE


# -- under launchers of MPI

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "PMIX_NAMESPACE": "prterun-node0-4711@1",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1"}
SCRIPT = ["python", "sim.py"]


def who(environ, argv=SCRIPT, pid=1):
    found = identify(environ, argv, pid)
    return found.role, found.rank, found.world_size, found.local_rank


def test_a_process_of_mpirun_is_a_rank_before_it_imports_anything():
    assert who(OPEN_MPI) == (RANK, 2, 4, 0)
    assert who(HYDRA) == (RANK, 1, 2, 1)


@pytest.mark.parametrize("words", [["sim.py", "4"], ["-m", "pkg.sim"]])
def test_the_program_that_mpi4py_runs_gives_the_name(words):
    found = identify(OPEN_MPI, ["python", "-m", "mpi4py", *words], 1)
    assert (found.role, found.script) == (RANK, "sim")


def test_torchrun_inside_mpirun_gives_the_rank():
    """Its ranks inherit the variables of mpirun, which number the nodes."""
    torchrun = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
    assert who(OPEN_MPI | torchrun) == (RANK, 5, 8, 1)


def test_a_child_of_a_rank_with_its_variables_is_no_second_rank():
    claimed = OPEN_MPI | {CLAIM: f"99:{launch.fingerprint(OPEN_MPI)}"}
    assert who(claimed, pid=100)[0] == CANDIDATE
    assert who(claimed, pid=99)[0] == RANK


@pytest.mark.parametrize(
    "environ", [OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "4"}, HYDRA | {"PMI_SIZE": "x"}]
)
def test_numbers_that_make_no_sense_make_no_rank(environ):
    assert who(environ)[0] == CANDIDATE
