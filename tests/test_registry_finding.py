"""Which job a name refers to."""

import pytest

from ddtop import registry
from ddtop.registry import UnknownJobError

# -- finding
from tests.entries import NOW, entry


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


def test_a_run_that_has_one_name_on_all_hosts_is_that_of_the_host_that_is_meant_else_of_its_hub(
    home,
):
    """Open MPI's namespace, srun's step. The newest file has no meaning here."""
    for sender, role, started in (
        ("a" * 12, "hub", 1),
        ("b" * 12, "leaf", 2),
        ("c" * 12, "leaf", 3),
    ):
        registry.write_entry(entry(sender=sender, role=role, started_unix_ns=started))

    found = [registry.of_run("train", "r1", sender) for sender in ("b" * 12, None, "gone")]

    assert [one.sender[0] for one in found] == ["b", "a", "a"]
    assert registry.of_run("train", "r2") is None


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


def test_a_hub_stands_for_all_hosts_of_its_job(home):
    """Each host's relay writes a job file into the shared folder."""
    registry.write_entry(
        entry(run="r-leaf", sender="1" * 12, started_unix_ns=9, role="leaf", part_of="r-hub")
    )
    registry.write_entry(entry(run="r-hub", sender="2" * 12, started_unix_ns=1, role="hub"))

    assert registry.find_job("train", NOW).run == "r-hub"
    assert registry.find_job(None, NOW).run == "r-hub"


def test_a_leaf_whose_hub_cannot_be_asked_stands_for_itself(home):
    registry.write_entry(entry(run="r-leaf", sender="1" * 12, role="leaf", part_of="r-hub"))
    registry.write_entry(entry(run="r-hub", sender="2" * 12, role="hub", heartbeat_unix_ns=1))

    assert registry.find_job("train", NOW).run == "r-leaf"


def test_an_ended_job_of_several_hosts_is_one(home):
    registry.write_entry(
        entry(
            run="r-leaf",
            sender="1" * 12,
            started_unix_ns=9,
            role="leaf",
            part_of="r-hub",
            ended_unix_ns=9,
        )
    )
    registry.write_entry(
        entry(run="r-hub", sender="2" * 12, role="hub", ended_unix_ns=9, heartbeat_unix_ns=1)
    )

    assert registry.find_job("train", NOW).run == "r-hub"


def test_where_the_launcher_names_the_run_alike_on_all_hosts_the_hub_is_meant(home):
    registry.write_entry(
        entry(run="same", sender="1" * 12, started_unix_ns=9, role="leaf", part_of="same")
    )
    registry.write_entry(entry(run="same", sender="2" * 12, role="hub"))

    assert registry.find_job("train", NOW).role == "hub"


def test_a_relay_of_another_host_is_reached_at_its_public_address(home):
    there = entry(
        sender="2" * 12,
        role="hub",
        address="127.0.0.1",
        port=5,
        public_address="node0",
        public_port=7000,
    )
    here = entry(
        sender=registry.host_identity(),
        role="hub",
        port=5,
        public_address="node0",
        public_port=7000,
    )

    assert there.endpoint() == ("node0", 7000)
    assert here.endpoint() == ("127.0.0.1", 5)
    assert entry(sender="2" * 12, port=5).endpoint() == ("127.0.0.1", 5)
