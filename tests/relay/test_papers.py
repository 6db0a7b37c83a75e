"""What a relay writes down, and that what it could not write is said for as long as that is so."""

from __future__ import annotations

import pytest

from ddtop import registry
from ddtop.relay.keeper import Keeper
from ddtop.relay.papers import Papers, Place
from ddtop.wire.records import Hello


@pytest.fixture
def papers(home):
    return Papers("train", "r1", registry.host_identity(), "node0", 7000, Keeper())


def write_entry(papers):
    papers.write_entry(Hello("train", "r1", 0, 0, 0, 2, "node0", 1, 1), 1, None, (), Place())


def test_a_roster_that_cannot_be_written_is_told_though_the_job_file_can(papers):
    """A relay that follows this one would not know whom to watch; the two lie in different folders."""
    papers.roster.mkdir()
    papers.write_roster()
    write_entry(papers)
    why = papers.why
    papers.roster.rmdir()
    papers.write_roster()

    assert why == f"cannot write {papers.roster}: Is a directory"
    assert papers.why is None


def test_a_state_folder_that_is_full_is_told_until_it_is_not(papers, monkeypatch):
    def full(entry):
        raise registry.RegistryError("cannot write the job file: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(registry, "write_entry", full)
        write_entry(papers)
    why = papers.why
    write_entry(papers)

    assert why == "cannot write the job file: No space left on device"
    assert papers.why is None
