"""To which run a rank belongs, and the name of that run."""

import json
import os
import subprocess
import sys

import pytest

from ddtop import registry
from ddtop.agent import run_name
from ddtop.agent.identity import RANK, TREE, Identity


def who(rank=0, world_size=2, elastic=False, script="train"):
    return Identity(RANK, script, rank, rank, world_size, 0, elastic)


def test_a_rank_whose_file_a_relay_has_just_removed_joins_in_a_new_one(home, monkeypatch):
    """It had opened the file and waited for the lock of the relay that ended."""
    path, locks = registry.runtime_dir() / registry.JOIN_FILE, []

    def flock(_file, _how):
        if not locks:
            path.unlink()
        locks.append(1)

    monkeypatch.setattr(run_name.fcntl, "flock", flock)
    _, run = run_name.join_plain(who(), {})

    assert len(locks) == 2
    assert [one["run"] for one in json.loads(path.read_bytes())] == [run]


PROGRAM = """
import os, sys
sys.argv = [os.environ.get("SCRIPT", "train.py")]
from ddtop.agent import run_name
from ddtop.agent.identity import Identity
rank = int(sys.orig_argv[-1])
sys.stdin.readline()
print(run_name.join_plain(Identity("rank", "train", rank, rank, int(os.environ.get("SIZE", "2"))), os.environ), flush=True)
sys.stdin.read()
"""  # noqa: E501


class Shell:
    """A rank that a person starts in a new shell. It lives until the test ends."""

    def __init__(self, rank, folder, variables):
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank)], env=os.environ | variables, cwd=folder,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def goes(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def run(self):
        return self.process.stdout.readline()

    def ends(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def join(home, tmp_path):
    """Starts a rank in a shell, and returns the run that the rank joins."""
    shells = []

    def start(rank, folder=tmp_path, **variables):
        shells.append(Shell(rank, folder, variables))
        shells[-1].goes()
        return shells[-1].run()

    start.shells = shells
    yield start
    for shell in shells:
        if not shell.process.stdin.closed:
            shell.ends()


def rewrite(home, change):
    """Change what the runs have written to their files."""
    (path,) = home.runtime.glob("plain-*.json")
    runs = json.loads(path.read_text())
    change(runs)
    path.write_text(json.dumps(runs))


# -- names


def test_ranks_of_one_launcher_share_its_name_and_run(home):
    tree = run_name.launcher_tree("train", os.getpid())
    names = [run_name.name_run(who(rank, elastic=True), {TREE: tree}, 1) for rank in (0, 1)]

    assert names[0] == names[1]
    assert names[0] == (
        f"train-{os.getpid()}",
        f"{os.getpid()}.{registry.start_ticks(os.getpid())}",
        None,
    )


STEP = {
    "SLURM_JOB_ID": "10",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NUM_NODES": "1",
}


@pytest.mark.parametrize(
    ("tree", "name"),
    [(f"train-{os.getpid()}|", "10.0"), ("launch-7|", "launch-7"), ("", "10.0")],
    ids=["its own", "its launcher's", "none"],
)
def test_tasks_of_srun_on_one_node_have_the_name_of_their_step(home, tree, name):
    """Each task had named a process tree of its own before it joined: two jobs."""
    for rank in (0, 1):
        numbers = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), TREE: tree}

        assert run_name.name_run(who(rank), STEP | numbers, 1) == (name, "slurm-10.0", None)


def test_a_launcher_without_the_hook_still_makes_one_run(home):
    """Its children have no marker, but they have the same parent."""
    job, run, _ = run_name.name_run(who(elastic=True), {}, os.getpid())

    assert job == f"train-{os.getpid()}"
    assert run == f"{os.getpid()}.{registry.start_ticks(os.getpid())}"


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({"DDTOP_JOB": "llama"}, "llama"),
        ({"DDTOP_JOB": "llama", "TORCHELASTIC_RUN_ID": "other"}, "llama"),
        ({"TORCHELASTIC_RUN_ID": "other"}, "other"),
    ],
)
def test_a_name_that_a_person_chose_is_the_name(home, variables, name):
    assert run_name.name_run(who(elastic=True), variables, os.getpid())[0] == name


def test_a_name_that_cannot_be_a_file_name_is_cleaned_and_said(home):
    job, _, complaint = run_name.name_run(who(elastic=True), {"DDTOP_JOB": "my job/1"}, os.getpid())

    assert job == "my-job-1"
    assert (
        complaint
        == "the job name 'my job/1' cannot be used as a file name; this job is called my-job-1"
    )


# -- ranks without a launcher


def test_plain_ranks_of_one_script_and_folder_are_one_run(join):
    assert join(0, MASTER_PORT="1") == join(1, MASTER_PORT="1")


def test_a_wrong_master_port_does_not_split_the_job_that_it_breaks(join):
    """Both must be in one table, so that the difference can be seen."""
    assert join(0, MASTER_PORT="29500") == join(1, MASTER_PORT="29501")


def test_a_process_that_named_a_tree_after_itself_is_in_no_tree():
    """It became a rank by an argument, as with JAX: a wrong port would split the job."""
    own = {TREE: f"train-{os.getpid()}|"}

    assert (run_name._tree_of(own), run_name._tree_of({TREE: "train-1|"})) == ("", "train-1|")


def test_two_jobs_of_the_same_script_side_by_side_are_two(join):
    """A sweep: the same command line twice, each with a port of its own."""
    assert join(0, MASTER_PORT="29500") != join(0, MASTER_PORT="29501")


def test_two_processes_that_claim_one_rank_of_one_master_are_one_job(join):
    """A person typed RANK=0 in both panes."""
    assert join(0, MASTER_PORT="29500") == join(0, MASTER_PORT="29500")


def test_tasks_of_srun_that_copy_their_numbers_are_one_job_wherever_they_meet(join):
    """They meet at a file, so no port shows that they belong together."""
    step = {"SLURM_JOB_ID": "10", "SLURM_STEP_NUM_TASKS": "2", "RANK": "0"}
    runs = [join(rank, SLURM_STEP_ID="0", **step, **{TREE: f"train-{rank}|"}) for rank in (0, 1)]
    other = join(1, SLURM_STEP_ID="1", **step, **{TREE: "train-2|"})

    assert runs[0] == runs[1]
    assert other != runs[0]


def test_trees_outside_of_srun_are_two_jobs(join):
    """In one folder, the programs of two people may both have a rank 0 and a rank 1."""
    assert join(0, **{TREE: "a-1|"}) != join(1, **{TREE: "b-2|"})


def actor(monkeypatch, title):
    monkeypatch.setattr(run_name, "command_line", lambda pid: (title,))


@pytest.mark.parametrize("other", ["Rollout", "Trainer"])
def test_groups_of_actors_of_one_driver_are_jobs_with_names_of_their_own(home, monkeypatch, other):
    """Rank 1 of the second group comes before rank 1 of the first one."""
    found = []
    for rank, name, port in ((0, "Trainer", 1), (1, other, 2), (1, "Trainer", 1), (0, other, 2)):
        actor(monkeypatch, f"ray::{name}.__init__")
        environ = {TREE: "driver-5|"}
        found.append(run_name.name_run(who(rank), environ, 1, f"127.0.0.1:{port}")[:2])

    assert found[0] == found[2]
    assert found[1] == found[3]
    assert found[0][0] == "driver-5-Trainer"
    assert len({job for job, _ in found}) == 2


def test_another_folder_is_another_job(join, tmp_path):
    (tmp_path / "b").mkdir()

    assert join(0) != join(1, tmp_path / "b")


MEETING = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def test_ranks_that_meet_are_one_job_whatever_their_scripts_are(join, tmp_path):
    """A parameter server and its workers share MASTER_ADDR, MASTER_PORT and WORLD_SIZE."""
    (tmp_path / "b").mkdir()
    first = join(0, SCRIPT="server.py", **MEETING)

    assert (
        join(
            1,
            tmp_path / "b",
            SCRIPT="worker.py",
            SIZE="2",
            **MEETING | {"MASTER_ADDR": "localhost"},
        )
        == first
    )


@pytest.mark.parametrize(
    ("rank", "other"),
    [
        (1, {"MASTER_PORT": "29501"}),
        (1, {"MASTER_ADDR": "node1"}),
        (1, {"SIZE": "4"}),
        (0, {}),
        (1, {"MASTER_ADDR": ""}),
    ],
)
def test_scripts_that_do_not_meet_are_two_jobs(join, rank, other):
    first = join(0, SCRIPT="a.py", **MEETING)

    assert join(rank, SCRIPT="b.py", **MEETING | other) != first


def test_another_script_at_the_port_of_a_job_that_has_ended_is_another_job(join):
    first = join(0, SCRIPT="a.py", **MEETING)
    join.shells[0].ends()

    assert join(1, SCRIPT="b.py", **MEETING) != first


def test_ranks_that_meet_have_one_name(home, monkeypatch):
    """One shell has DDTOP_JOB, the other one has not, and their scripts have two names."""
    first = run_name.name_run(who(0, script="server"), MEETING | {"DDTOP_JOB": "llama"}, 1)
    second = run_name.name_run(who(1, script="worker"), MEETING, 1)

    assert first == second
    assert first[0] == "llama"


def test_ranks_that_meet_are_named_after_the_first_script(home):
    first = run_name.name_run(who(0, script="server"), MEETING | {TREE: "server-7|"}, 1)
    second = run_name.name_run(who(1, script="worker"), MEETING | {TREE: "worker-8|"}, 1)

    assert first == second
    assert first[0] == "server-7"


def test_ranks_that_start_later_than_two_minutes_are_another_run(join, home):
    first = join(0)
    rewrite(home, lambda runs: runs[0].update(started_s=runs[0]["started_s"] - run_name.JOIN_S - 1))

    assert join(1) != first


def test_a_run_that_is_all_gone_for_long_takes_no_more(join, home):
    """Rank 1 belongs to the second start of rank 0, half a minute after the first."""
    first = join(0)
    join.shells[0].ends()
    rewrite(
        home, lambda runs: runs[0].update(started_s=runs[0]["started_s"] - run_name.ALL_GONE_S - 1)
    )

    assert join(1) != first


def test_a_rank_that_starts_beside_one_that_crashed_at_once_is_of_its_run(join):
    first = join(0)
    join.shells[0].ends()

    assert join(1) == first


def test_the_rank_of_a_process_that_is_gone_is_free_in_a_new_run(join):
    """A job that crashed at once was started again: the new ranks are not the dead ones."""
    first = join(0, MASTER_PORT="29500")
    join.shells[0].ends()

    assert join(0, MASTER_PORT="29500") != first


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b"\x00\x00", pytest.param(b'[{"run": "\xff"}]')]
)
def test_a_damaged_list_of_runs_is_begun_anew(join, home, content):
    join(0)
    (path,) = home.runtime.glob("plain-*.json")
    path.write_bytes(content)
    second = join(1)

    assert second
    assert second == join(0)


def test_ranks_that_start_at_the_same_moment_are_one_run(home, tmp_path):
    """A for loop starts four shells, which race for the file."""
    shells = [Shell(rank, tmp_path, {}) for rank in range(4)]
    for shell in shells:
        shell.goes()
    runs = {shell.run() for shell in shells}
    for shell in shells:
        shell.ends()

    assert len(runs) == 1


def test_a_wrong_world_size_does_not_split_the_job_that_it_breaks(join):
    """WORLD_SIZE=2 and 3 with one master: both wait, and must be in one table."""
    assert join(0, MASTER_PORT="29500", SIZE="2") == join(1, MASTER_PORT="29500", SIZE="3")


def test_jobs_that_agree_in_neither_master_nor_size_are_two(join):
    """One script on two and on four ranks; rank 2 of the larger job starts first."""
    assert join(0, MASTER_PORT="29500", SIZE="2") != join(2, MASTER_PORT="29501", SIZE="4")


def test_of_two_runs_it_joins_the_one_that_agrees_in_both(join):
    small = join(0, MASTER_PORT="29500", SIZE="2")
    large = join(0, MASTER_PORT="29501", SIZE="4")

    assert join(1, MASTER_PORT="29500", SIZE="2") == small
    assert join(1, MASTER_PORT="29501", SIZE="4") == large
    assert join(3, MASTER_PORT="29501", SIZE="4") == large


def test_the_dead_of_another_size_draw_nobody_in(join):
    """Two ranks crashed at once. The next start has four ranks, at the same port."""
    first = join(0, MASTER_PORT="29500", SIZE="2")
    join.shells[0].ends()

    assert join(3, MASTER_PORT="29500", SIZE="4") != first
