"""Which process above this one is a rank, and what a process below a rank is."""

import multiprocessing
import os
import subprocess
import sys

import pytest

from ddtop import registry
from ddtop.agent import claim
from ddtop.agent.claim import RankAbove
from ddtop.agent.state_page import StatePage
from ddtop.wire import page as layout

HERE, ELSEWHERE = 29500, 31007
LOOK = (
    "import os; from ddtop.agent.claim import rank_above; "
    "found = rank_above(os.getpid()); print(found and (found.pid, found.member))"
)


@pytest.fixture
def page():
    """This process has a state page, as a rank has."""
    made = StatePage(os.getpid(), registry.start_ticks(os.getpid()))
    yield made
    made.remove()


def joins(page, number=0, size=3, met=HERE):
    page.words[layout.MEMBER_AT], page.words[layout.MEMBERS_AT] = number + 1, size
    page.words[layout.MET_AT] = met


def seen_by(*prefix, program=None):
    """What a process that this one starts, through these programs, sees above it."""
    words = [*prefix, sys.executable, "-c", LOOK]
    done = subprocess.run(words, executable=program, capture_output=True, text=True, check=True)
    return done.stdout.strip()


SHELL = ("-c", '"$@"; true', "-")
"""It stays: without the last command a shell replaces itself by its program."""
CARRIERS = {
    "nothing": (),
    "a shell": ("/bin/sh", *SHELL),
    "a script in a script": ("/bin/sh", *SHELL, "/bin/sh", *SHELL),
    "nice": ("nice",),
    "a profiler": ("/usr/bin/env", "sh", *SHELL),
    "a wrapper in Python": (
        sys.executable, "-c", "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))",
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", CARRIERS)
def test_a_rank_is_found_above_programs_that_only_carry_its_variables(page, how):
    joins(page)

    assert seen_by(*CARRIERS[how]) == f"({os.getpid()}, 1)"


@pytest.mark.parametrize("how", CARRIERS)
def test_programs_that_only_carry_the_variables_are_no_ranks(how):
    assert seen_by(*CARRIERS[how]) == "None"


def test_a_process_that_has_joined_nothing_is_seen_and_makes_no_helpers(page):
    """A wrapper in Python with RANK=0 in its environment starts the training."""
    assert seen_by() == f"({os.getpid()}, 0)"


@pytest.mark.parametrize(
    "launcher",
    ["mpirun", "/opt/mpi/bin/mpiexec", "mpiexec.hydra", "hydra_pmi_proxy", "prterun", "srun"],
)
def test_what_a_launcher_starts_is_a_job_of_its_own(page, launcher):
    """Rank 0 starts a simulation with mpirun: its processes are ranks of another job."""
    joins(page)

    assert seen_by(launcher, *SHELL, program="/bin/sh") == "None"


def test_a_torchrun_below_a_rank_begins_a_job_of_its_own(page, tmp_path):
    joins(page)
    torchrun = tmp_path / "torchrun"
    torchrun.write_text("import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))")

    assert seen_by(sys.executable, str(torchrun)) == "None"


def test_of_two_ranks_above_the_one_that_has_joined_counts(page):
    """A rank starts a wrapper that has its variables too, and so a page, and that one the child."""
    joins(page)
    wrapper = (
        "import os, subprocess, sys; from ddtop import registry; "
        "from ddtop.agent.state_page import StatePage; "
        "page = StatePage(os.getpid(), registry.start_ticks(os.getpid())); "
        "code = subprocess.call(sys.argv[1:]); page.remove(); sys.exit(code)"
    )

    assert seen_by(sys.executable, "-c", wrapper) == f"({os.getpid()}, 1)"


@pytest.mark.parametrize("damage", ["short", "another file", "a link"])
def test_a_damaged_page_is_no_page(page, tmp_path, damage):
    joins(page)
    data = page.path.read_bytes()
    page.path.unlink()
    if damage == "short":
        page.path.write_bytes(data[:100])
    elif damage == "another file":
        page.path.write_bytes(b"x" * len(data))
    else:
        (tmp_path / "page").write_bytes(data)
        page.path.symlink_to(tmp_path / "page")

    assert seen_by() == "None"


def above(number=0, size=3, met=HERE, left=False):
    return RankAbove(4800, -(number + 1) if left else number + 1, size, met)


@pytest.mark.parametrize(
    ("parent", "child", "expected"),
    [
        # a scorer, a server, a process that writes checkpoints
        (above(), (0, 1, ELSEWHERE), True),
        (above(), (0, 3, ELSEWHERE), True),
        (above(), (0, 1, 0), True),
        # the second worker of such a server
        (above(), (1, 2, ELSEWHERE), True),
        # a group of one in the store of the job
        (above(), (0, 1, HERE), True),
        # the same group once more
        (above(), (0, 3, HERE), False),
        # rank 0 of Lightning starts the others
        (above(), (1, 3, HERE), False),
        (above(), (1, 3, 0), False),
        # a parent that carries the variables, or has had a group of its own alone
        (RankAbove(4800, 0, 0, 0), (0, 3, HERE), False),
        (above(size=1), (0, 2, ELSEWHERE), False),
        (above(size=1), (0, 1, ELSEWHERE), True),
        # a parent that has left its group: the training begins, or an evaluation
        (above(left=True), (0, 3, HERE), False),
        (above(left=True), (0, 3, ELSEWHERE), False),
        (above(left=True), (0, 1, ELSEWHERE), True),
        # MPI: where the ranks have met is not known
        (above(met=0), (0, 3, 0), True),
        (above(met=0), (1, 3, 0), False),
    ],
)
def test_whether_a_process_below_a_rank_is_a_helper_follows_from_the_group_that_it_joins(
    parent, child, expected
):
    assert parent.makes_helper(*child) is expected


@pytest.mark.parametrize(("anew", "found"), [(True, []), (False, [0])])
def test_a_child_that_runs_the_script_of_its_parent_anew_is_no_second_rank(
    monkeypatch, anew, found
):
    """A DataLoader worker of a script without a guard calls init_process_group as its rank did, and
    fails a moment later. A child that has a task of its own has imported the script before."""
    ranks = []
    monkeypatch.setattr(claim, "become_rank", lambda who, *_: ranks.append(who.rank))
    monkeypatch.setattr(claim, "rank_above", lambda _pid: above(met=0))
    if anew:
        monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    monkeypatch.setattr(RankAbove, "makes_helper", lambda *_: False)
    claim.entering_init(0, 3, "gloo", "tcp://127.0.0.1:29500")

    assert ranks == found
