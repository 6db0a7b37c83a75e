"""Which job a name means."""

from __future__ import annotations

import pytest

from ddtop import registry
from ddtop.registry import UnknownJobError

# -- finding
from tests.test_registry import NOW, entry


def found(name):
    return registry.find_job(name, NOW).job


def test_the_one_live_job_needs_no_name(home):
    registry.write_entry(entry("old", ended_unix_ns=NOW))
    registry.write_entry(entry("new"))

    assert found(None) == "new"


def test_a_unique_prefix_is_enough_and_a_whole_name_beats_it(home):
    for job in ("train", "train-2", "eval"):
        registry.write_entry(entry(job))

    assert (found("ev"), found("train"), found("train-")) == ("eval", "train", "train-2")


@pytest.mark.parametrize("name", ["train", None])
def test_an_ambiguous_name_lists_the_jobs(home, name):
    for job in ("train-1", "train-2"):
        registry.write_entry(entry(job))

    with pytest.raises(UnknownJobError) as caught:
        found(name)

    assert caught.value.ambiguous
    assert {one.job for one in caught.value.entries} == {"train-1", "train-2"}


def test_an_unknown_name_lists_the_jobs_there_are(home):
    registry.write_entry(entry("train"))

    with pytest.raises(UnknownJobError, match="no job named nosuch") as caught:
        found("nosuch")

    assert [one.job for one in caught.value.entries] == ["train"]
    assert not caught.value.ambiguous


def test_of_several_runs_of_one_name_the_newest_is_meant(home):
    registry.write_entry(entry(run="r1", started_unix_ns=1, ended_unix_ns=2))
    registry.write_entry(entry(run="r2", started_unix_ns=3, ended_unix_ns=4))

    assert registry.find_job("train", NOW).run == "r2"


def test_a_live_run_beats_a_newer_one_that_ended(home):
    registry.write_entry(entry(run="r1", started_unix_ns=1))
    registry.write_entry(entry(run="r2", started_unix_ns=3, ended_unix_ns=4))

    assert registry.find_job("train", NOW).run == "r1"
