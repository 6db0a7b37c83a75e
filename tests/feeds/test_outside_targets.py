"""Which processes a list of pids refers to."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtop import procfs
from ddtop.feeds.outside import jobs, targets
from ddtop.feeds.outside.jobs import OutsideTarget, keeps_here
from ddtop.feeds.outside.targets import PIDS_MAX
from ddtop.procfs import children
from tests.cli.outside import script_in, started
from tests.feeds.host import TORCHRUN, TRAIN, host, process, rank


@pytest.fixture
def script(tmp_path):
    return script_in(tmp_path)


@given(st.text(st.sampled_from("0123456789,- x\u0661")) | st.text())
def test_any_text_is_pids_or_a_clear_error(text):
    try:
        found = targets.numbers(text)
    except targets.PidsError:
        return
    assert 0 < len(found) <= PIDS_MAX
    assert all(pid > 0 for pid in found)


def test_pids_are_listed_and_ranged():
    assert targets.numbers("12,14-16, 12 9") == (12, 14, 15, 16, 9)


def target(pid, rank=-1, worker=False):
    return OutsideTarget(pid, 1, rank, False, ("python", "train.py"), {}, worker=worker)


def test_a_rank_that_two_processes_claim_is_not_believed():
    """Two jobs on one host both have a rank 0."""
    found, note = targets.number_targets([target(9, 0), target(8, 0), target(7, 1)])

    assert [(one.pid, one.rank, one.guessed) for one in found] == [
        (9, 0, True),
        (8, 1, True),
        (7, 2, True),
    ]
    assert "same rank" in note


def test_processes_without_a_rank_get_the_numbers_that_are_free():
    found, note = targets.number_targets([target(9), target(8, 0), target(7)])

    assert [(one.pid, one.rank, one.guessed) for one in found] == [
        (8, 0, False),
        (9, 1, True),
        (7, 2, True),
    ]
    assert note == "no rank in the environment of pid 9, 7"


def test_workers_belong_to_the_rank_that_started_them(home, script):
    """`pgrep -f train.py` lists the DataLoader workers too."""
    with started(script, "with-worker", RANK="1") as process:
        (worker,) = children(process.pid)
        found = targets.find(f"{worker},{process.pid}")

    assert [(one.pid, one.rank, one.worker) for one in found.found] == [
        (process.pid, 1, False),
        (worker, 1, True),
    ]
    assert found.notes == ()


def test_a_rank_does_not_stand_for_its_children(home, script):
    with started(script, "with-worker", RANK="1") as process:
        found = targets.find(str(process.pid))

    assert [one.pid for one in found.found] == [process.pid]


def test_children_of_a_process_without_a_rank_are_pointed_to(home, script):
    """mp.spawn: the ranks' environment is their parent's."""
    with started(script, "with-worker") as process:
        (child,) = children(process.pid)
        found = targets.find(str(process.pid))
        both = targets.find(f"{process.pid},{child}")

    assert (
        f"pid {process.pid} has started other Pythons, which may be the ranks: --pid {child}"
        in found.notes
    )
    assert not [note for note in both.notes if "started other" in note]


def test_a_thread_that_ends_while_a_process_is_looked_at_hides_no_children(
    home, script, monkeypatch
):
    """torchrun has threads that come and go."""
    listed = Path.glob

    def glob(folder, pattern):
        return [folder / "1" / "children", *listed(folder, pattern)]

    with started(script, "with-worker") as process:
        (child,) = children(process.pid)
        monkeypatch.setattr(Path, "glob", glob)
        found = targets.find(str(process.pid))

    assert (
        f"pid {process.pid} has started other Pythons, which may be the ranks: --pid {child}"
        in found.notes
    )


def test_ranks_of_another_user_are_numbered_by_their_start(home, script, monkeypatch):
    """Their environment cannot be read. The files of /proc that every user can read are shown all
    the same.
    """
    with started(script, "with-worker") as process:
        (child,) = children(process.pid)
        owner = Path(f"/proc/{process.pid}").stat().st_uid
        monkeypatch.setattr(os, "getuid", lambda: owner + 1)
        monkeypatch.setattr(jobs, "environment_of", lambda _pid: {})
        found = targets.find(str(process.pid))

    assert [(one.pid, one.rank, one.guessed) for one in found.found] == [(child, 0, True)]
    assert any("belongs to another user" in note for note in found.notes)


@pytest.mark.parametrize(
    ("namespace", "words"),
    [("pid:[4026531836]", "ps -u $USER"), ("pid:[4026532999]", "kubectl debug --target")],
)
def test_a_process_that_does_not_exist_may_be_outside_of_this_container(
    monkeypatch, namespace, words
):
    monkeypatch.setattr(procfs, "link", lambda pid, name: namespace)

    with pytest.raises(targets.NoProcessError, match="there is no process") as error:
        targets.find("999999999")

    assert words in str(error.value)


@pytest.mark.parametrize("folder", [None, "/home/ada/other"])
def test_a_launcher_whose_job_will_be_in_another_state_folder_is_not_announced_here(
    monkeypatch, folder
):
    process = SimpleNamespace(environment={"DDTOP_STATE": folder} if folder else {})
    monkeypatch.setenv("DDTOP_STATE", "/home/ada/own")
    assert not keeps_here(process)

    process.environment["DDTOP_STATE"] = "/home/ada/own"
    assert keeps_here(process)


@pytest.fixture
def found_on(monkeypatch):
    """What `--pid` selects on a made-up host."""

    def find(pid, *processes, of_job=True, talking=()):
        monkeypatch.setattr(jobs, "read", lambda: host(*processes, talking=talking))
        monkeypatch.setattr(targets, "is_python", lambda _pid: True)
        monkeypatch.setattr(targets, "_is_foreign", lambda _pid: False)
        found = targets.find(str(pid), of_job)
        return [one.pid for one in found.found], found.notes, found.job

    return find


SIDE_BY_SIDE = (
    process(50, argv=("bash",), python=False),
    *(process(10, 50, TORCHRUN), rank(11, 10, 0, 2), rank(12, 10, 1, 2), process(15, 12)),
    *(process(20, 50, TORCHRUN), rank(21, 20, 0, 2, MASTER_PORT="29501")),
    rank(22, 20, 1, 2, MASTER_PORT="29501"),
)
"""Two jobs under one shell; a rank of the first one has a child."""


@pytest.mark.parametrize(("pid", "ranks"), [(12, [11, 12]), (21, [21, 22])])
def test_a_rank_stands_for_the_ranks_of_its_own_job(found_on, pid, ranks):
    pids, (note,), job = found_on(pid, *SIDE_BY_SIDE)

    assert (pids, [one.pid for one in job.ranks]) == (ranks, ranks)
    assert note == (
        f"pid {pid} is rank {ranks.index(pid)} of 2: looking at all of them; ddtop stacks --pid"
        f" {pid} reads it alone"
    )


def test_a_process_that_a_rank_has_started_stands_for_the_job_of_that_rank(found_on):
    pids, (note,), _ = found_on(15, *SIDE_BY_SIDE)

    assert pids == [11, 12]
    assert note.startswith("pid 15 was started by pid 12, which is rank 1 of 2: looking at all")


def test_ranks_of_mpirun_of_two_jobs_are_kept_apart(found_on):
    """Their environments differ in nothing but the number."""
    worlds = [
        process(
            pid,
            parent,
            OMPI_COMM_WORLD_RANK=str(number),
            OMPI_COMM_WORLD_SIZE="2",
            OMPI_COMM_WORLD_LOCAL_RANK=str(number),
        )
        for parent in (10, 20)
        for number, pid in enumerate((parent + 1, parent + 2))
    ]
    mpiruns = [process(pid, argv=("mpirun", "-n", "2"), python=False) for pid in (10, 20)]

    assert found_on(22, *mpiruns, *worlds)[0] == [21, 22]


def test_a_rank_of_mp_spawn_stands_for_those_that_its_parent_has_started(found_on):
    parent = process(9, argv=TRAIN)
    ranks = [process(pid, 9) for pid in (11, 12, 13)]
    pids, notes, _ = found_on(12, parent, *ranks, talking=(11, 12, 13))

    assert pids == [11, 12, 13]
    assert notes[0].startswith("pid 12 is rank 1 of 3: looking at all of them")


def test_of_several_hosts_the_ranks_of_this_one_are_looked_at(found_on):
    here = [rank(pid, 10, number, 4, MASTER_ADDR="10.0.0.1") for number, pid in ((2, 11), (3, 12))]
    pids, (note,), _ = found_on(11, process(10, argv=TORCHRUN), *here)

    assert pids == [11, 12]
    assert note.startswith("pid 11 is rank 2 of 4: looking at the 2 of this host")


def test_stacks_of_a_rank_are_those_of_that_process_alone(found_on):
    assert found_on(12, *SIDE_BY_SIDE, of_job=False)[0] == [12]


def test_the_only_rank_of_this_host_is_looked_at_as_it_is(found_on):
    pids, notes, job = found_on(11, rank(11, 10, 0, 4, MASTER_ADDR="10.0.0.1"))

    assert (pids, notes, job.world_size) == ([11], (), 4)
