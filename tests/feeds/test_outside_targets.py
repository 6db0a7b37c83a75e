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
