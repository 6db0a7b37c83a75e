"""What a relay writes down, and that what it could not write is said for as long as that is so."""

from __future__ import annotations

import threading

import pytest

from ddtop import registry
from ddtop.relay.history import History
from ddtop.relay.state_files import RelayPlace, StateFiles
from ddtop.wire.records import Hello

DEADLINE_S = 20.0


@pytest.fixture
def papers(home):
    return StateFiles("train", "r1", registry.host_identity(), "node0", 7000, History())


def write_entry(papers):
    papers.write_entry(Hello("train", "r1", 0, 0, 0, 2, "node0", 1, 1), 1, None, (), RelayPlace())


def test_a_roster_that_cannot_be_written_is_told_though_the_job_file_can(papers):
    """A relay that follows this one would not know whom to watch.

    The two lie in different folders.
    """
    papers.roster.mkdir()
    papers.write_roster()
    write_entry(papers)
    papers.finish(DEADLINE_S)
    why = papers.why
    papers.roster.rmdir()
    papers.write_roster()
    papers.finish(DEADLINE_S)

    assert why == f"cannot write {papers.roster}: Is a directory"
    assert papers.why is None


def test_a_state_folder_that_is_full_is_told_until_it_is_not(papers, monkeypatch):
    def full(entry):
        raise registry.RegistryError("cannot write the job file: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(registry, "write_entry", full)
        write_entry(papers)
        papers.finish(DEADLINE_S)
    why = papers.why
    write_entry(papers)
    papers.finish(DEADLINE_S)

    assert why == "cannot write the job file: No space left on device"
    assert papers.why is None


def test_what_waits_is_replaced_by_what_is_newer_and_written_in_order(papers, monkeypatch):
    """The job file that says that the job has ended names the last state.

    It must not be there first.
    """
    began, go, written = threading.Event(), threading.Event(), []

    def slow(path, frames):
        written.append(path.suffix)
        began.set()
        assert go.wait(DEADLINE_S)

    monkeypatch.setattr("ddtop.relay.state_files._write", slow)
    monkeypatch.setattr(
        "ddtop.relay.state_files._write_entry", lambda entry, _: written.append(entry.ended_unix_ns)
    )
    papers.write_last_state()
    assert began.wait(DEADLINE_S)
    hello = Hello("train", "r1", 0, 0, 0, 2, "node0", 1, 1)
    papers.write_entry(hello, 1, None, (), RelayPlace())
    papers.write_last_state()
    papers.write_entry(hello, 1, 7, (), RelayPlace())
    go.set()

    assert papers.finish(DEADLINE_S)
    assert written == [".last", ".last", 7]


def test_a_folder_that_does_not_answer_is_reported_with_its_age_and_nobody_waits_for_it(
    papers, monkeypatch
):
    go = threading.Event()
    monkeypatch.setattr("ddtop.relay.host.file_calls.SLOW_S", 0.0)
    monkeypatch.setattr("ddtop.relay.state_files._write_entry", lambda *_: go.wait(DEADLINE_S))
    write_entry(papers)
    while (why := papers.why) is None:
        pass
    papers.write_roster()
    wrote = papers._runtime.finish(DEADLINE_S)
    finished = papers.finish(0.01)
    go.set()
    papers.finish(DEADLINE_S)

    assert "has not answered for 0 s (a file server that hangs?)" in why
    assert (wrote, finished) == (True, False)
    assert papers.why is None
