"""`ddtop doctor` on jobs of several hosts: the environment, and the hub that follows from it."""

import os

import pytest

from ddtop.cli import doctor_hosts
from tests.relay.stage import is_a, sees_ranks


@pytest.fixture
def plain(home, monkeypatch):
    for name in [name for name in os.environ if name.startswith(("SLURM_", "OMPI_", "PMI"))]:
        monkeypatch.delenv(name)
    return monkeypatch


def variables(monkeypatch, **given):
    for name, value in given.items():
        monkeypatch.setenv(name, value)


def test_outside_of_a_job_doctor_says_where_to_run_it(plain):
    assert doctor_hosts.spans()[0] == "ok"
    assert "srun ddtop doctor" in doctor_hosts.spans()[2]
    assert doctor_hosts.hub()[::2] == (
        "ok",
        "DDTOP_HUB is not set: "
        "other hosts find it in the shared state folder, or where the ranks meet",
    )


def test_doctor_in_a_step_of_srun_says_where_the_hub_would_be(plain):
    step = {
        "SLURM_JOB_ID": "77",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NUM_TASKS": "8",
        "SLURM_PROCID": "5",
    }
    variables(plain, **step, SLURM_STEP_NODELIST="node[7-8]")

    assert doctor_hosts.spans() == (
        "ok",
        "hosts",
        "rank 5 of 8, on several hosts: the hub would be at node7",
    )

    variables(plain, SLURM_PROCID="0", DDTOP_HUB="node7:7777")
    assert "this would be the hub, on port 7777" in doctor_hosts.spans()[2]

    variables(plain, SLURM_STEP_NUM_NODES="1", DDTOP_HUB="")
    assert doctor_hosts.spans()[2] == "rank 0 of 8: a job on this host alone"


def test_doctor_says_if_nothing_tells_where_rank_0_is(plain):
    variables(
        plain, OMPI_COMM_WORLD_RANK="5", OMPI_COMM_WORLD_SIZE="8", OMPI_COMM_WORLD_LOCAL_SIZE="4"
    )

    assert doctor_hosts.spans()[0] == "bad"
    assert "set DDTOP_HUB=HOST:PORT on all of them" in doctor_hosts.spans()[2]


@pytest.mark.parametrize(
    ("value", "mark", "text"),
    [
        ("node7", "bad", "is not HOST:PORT"),
        ("no-such-host.invalid:7", "note", "no host is called"),
        ("127.0.0.1:9", "ok", "a job with rank 0 here will"),
    ],
)
def test_doctor_tries_the_hub_that_is_named(plain, value, mark, text):
    variables(plain, DDTOP_HUB=value)

    found = doctor_hosts.hub()

    assert found[0] == mark
    assert text in found[2]


def test_doctor_joins_a_hub_that_answers_and_compares_clocks(here, plain):
    link = here.viewer()
    here.heard(link, is_a(type(here.heard(link, sees_ranks)[-1])))
    variables(plain, DDTOP_HUB=f"127.0.0.1:{here.server._link.port}")

    mark, _, text = doctor_hosts.hub()

    assert mark == "ok"
    assert ("answers to this key: train, 1 rank; clocks differ by less than 2 s" in text) is True
