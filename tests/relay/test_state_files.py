"""What a relay writes to its files. A failed write is reported as long as it fails."""

import os
import threading

import msgspec
import pytest

from ddtop import registry
from ddtop.relay.history import FrameHistory
from ddtop.relay.state_files import RelayPlace, StateFiles
from ddtop.wire.records import Hello

DEADLINE_S = 20.0


def state_files():
    return StateFiles("train", "r1", registry.host_identity(), "node0", 7000, FrameHistory())


@pytest.fixture
def files(home):
    return state_files()


def write_entry(files):
    files.write_entry(Hello("train", "r1", 0, 0, 0, 2, "node0", 1, 1), 1, None, (), RelayPlace())


def test_a_roster_that_cannot_be_written_is_told_though_the_job_file_can(files):
    """The next relay would not know which ranks to watch."""
    files.roster.mkdir()
    files.write_roster()
    write_entry(files)
    files.finish(DEADLINE_S)
    why = files.why
    files.roster.rmdir()
    files.write_roster()
    files.finish(DEADLINE_S)

    assert why == f"cannot write {files.roster}: Is a directory"
    assert files.why is None


def test_a_state_folder_that_is_full_is_told_until_it_is_not(files, monkeypatch):
    def full(entry):
        raise registry.RegistryError("cannot write the job file: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(registry, "write_entry", full)
        write_entry(files)
        files.finish(DEADLINE_S)
    why = files.why
    write_entry(files)
    files.finish(DEADLINE_S)

    assert why == "cannot write the job file: No space left on device"
    assert files.why is None


def test_what_waits_is_replaced_by_what_is_newer_and_written_in_order(files, monkeypatch):
    """The job file of an ended job names the last state: it must not be first."""
    began, go, written = threading.Event(), threading.Event(), []

    def slow(path, frames):
        written.append(path.suffix)
        began.set()
        assert go.wait(DEADLINE_S)

    monkeypatch.setattr("ddtop.relay.state_files._write", slow)
    monkeypatch.setattr(
        "ddtop.relay.state_files._write_entry", lambda entry, _: written.append(entry.ended_unix_ns)
    )
    files.write_last_state()
    assert began.wait(DEADLINE_S)
    hello = Hello("train", "r1", 0, 0, 0, 2, "node0", 1, 1)
    files.write_entry(hello, 1, None, (), RelayPlace())
    files.write_last_state()
    files.write_entry(hello, 1, 7, (), RelayPlace())
    go.set()

    assert files.finish(DEADLINE_S)
    assert written == [".last", ".last", 7]


def test_a_folder_that_does_not_answer_is_reported_with_its_age_and_nobody_waits_for_it(
    home, monkeypatch
):
    go = threading.Event()
    monkeypatch.setattr("ddtop.patience.FILE_CALL_SLOW_S", 0.0)
    files = state_files()
    monkeypatch.setattr("ddtop.relay.state_files._write_entry", lambda *_: go.wait(DEADLINE_S))
    write_entry(files)
    while (why := files.why) is None:
        pass
    files.write_roster()
    wrote = files._runtime.finish(DEADLINE_S)
    finished = files.finish(0.01)
    go.set()
    files.finish(DEADLINE_S)

    assert "has not answered for 0 s (a file server that hangs?)" in why
    assert (wrote, finished) == (True, False)
    assert files.why is None


def plain_runs(pid, ticks):
    """The file in which this process has joined a run."""
    path = registry.runtime_dir() / registry.JOIN_FILE
    member = {"rank": 0, "pid": pid, "start_ticks": ticks, "master": ":29500"}
    path.write_bytes(msgspec.json.encode([{"run": "p1", "started_s": 0.0, "members": [member]}]))
    return path


def test_the_last_relay_of_plain_ranks_leaves_nothing_in_the_runtime_folder(files):
    path = plain_runs(os.getpid(), 1)  # the pid lives, in another process
    files.write_roster()
    files.leave()
    files.finish(DEADLINE_S)

    assert not path.exists()
    assert not files.roster.exists()


@pytest.mark.parametrize("damaged", [False, True])
def test_a_file_that_a_living_rank_has_joined_in_stays(files, damaged):
    """Ranks of another job may still come, and nobody knows what is in a damaged file."""
    path = plain_runs(os.getpid(), registry.start_ticks(os.getpid()))
    if damaged:
        path.write_bytes(b'[{"members": [{"pid": {}}]}]')
    files.leave()
    files.finish(DEADLINE_S)

    assert path.exists()
