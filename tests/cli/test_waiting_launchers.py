"""`ddtop jobs` and `ddtop diagnose` before there is a rank."""

import asyncio
import json
import os
import time

import pytest
from msgspec.structs import replace

from ddtop import registry
from ddtop.cli import find_job, outside_jobs
from ddtop.cli.before_ranks import NOT_YET, BeforeRanks
from tests.cli.commands import ddtop, finished, write_ended
from tests.feeds.launchers import torchrun
from tests.ports import free_port

NAME = f"nodes{os.getpid()}"
"""Other tests of this host have launchers too."""


@pytest.fixture
def first(home, tmp_path):
    with torchrun(tmp_path, "first", free_port()) as pid:
        yield pid


def test_a_launcher_that_waits_for_nodes_is_listed_with_what_to_type(first):
    lines = ddtop("jobs").stdout.splitlines()
    listed = json.loads(ddtop("jobs", "--json").stdout)["outside"]

    assert "launchers without a rank:" in lines
    (line,) = [line for line in lines if line.endswith(f"ddtop diagnose --pid {first}")]
    assert line.startswith("  tabular, started ")
    (entry,) = [one for one in listed if one["launchers"] == [first]]
    assert (entry["script"], entry["ranks"]) == ("tabular", [])
    assert f"ddtop diagnose --pid {first}" in ddtop("status").stderr


@pytest.mark.parametrize("named", [True, False])
def test_diagnose_says_for_how_many_nodes_it_waits_and_where(first, tmp_path, named):
    config = tmp_path / "config.toml"
    config.write_text(
        "[limits]\ninit_missing_limit_s = 0.1\n[limits.starting]\ninit_missing_critical_s = 0.6\n"
    )
    words = ["diagnose", "--json", *(["--pid", first] if named else [])]
    until = time.monotonic() + 20.0
    while True:
        # Without a pid it tells of the launchers of other tests too.
        done = ddtop(*words, DDTOP_CONFIG=str(config))
        found = json.loads(done.stdout)["findings"] if done.stdout else []
        mine = [one for one in found if f"(pid {first}) has waited" in one["summary"]]
        if [one["severity"] for one in mine] == ["critical"]:
            break
        assert time.monotonic() < until

    (mine,) = mine
    assert done.returncode == 1
    assert (mine["kind"], mine["severity"], mine["ranks"]) == ("rank-missing", "critical", [])
    assert "for 1 of 2 nodes at 127.0.0.1:" in mine["summary"]


def test_in_its_first_seconds_it_only_starts(first):
    done = ddtop("diagnose", "--pid", first, exits=0)

    assert f"starting: no rank of pid {first} yet" in done.stdout


# -- started with DDTOP=1: the job has its name


@pytest.fixture
def named(home, tmp_path, monkeypatch):
    monkeypatch.setenv("DDTOP", "1")
    monkeypatch.setenv("DDTOP_JOB", NAME)
    with torchrun(tmp_path, "first", free_port()) as pid:
        yield pid


def test_it_is_listed_as_a_job_that_has_its_name(named):
    listed = json.loads(ddtop("jobs", "--json").stdout)["jobs"]
    (row,) = [one for one in listed if one["job"] == NAME]
    lines = ddtop("jobs").stdout.splitlines()

    assert (row["job"], row["live"], row["world_size"], row["reporting"]) == (NAME, True, 2, 0)
    assert row["summary"] == f"starting: no rank of pid {named} yet"
    assert NAME in [line.split()[0] for line in lines if line.strip()]
    assert not [line for line in lines if line.endswith(f"--pid {named}")]


@pytest.mark.parametrize("command", ["diagnose", "status", "attach"])
@pytest.mark.parametrize("name", ["NAME", "its beginning"])
def test_commands_take_its_name(named, command, name):
    done = ddtop(command, NAME if name == "NAME" else NAME[:-1], exits=0)

    assert f"{NAME}  0/2 ranks" in done.stdout


def test_another_name_is_still_no_job_and_the_error_says_what_to_type(named):
    done = ddtop("diagnose", NAME + "x", exits=3)

    assert f"no job named {NAME}x" in done.stderr
    assert f"ddtop diagnose {NAME}\n" in done.stderr


def test_a_command_that_needs_a_relay_says_that_there_is_no_such_job_yet(named):
    assert f"no job named {NAME}" in ddtop("signal", NAME, "TERM", "--rank", 0, exits=3).stderr


@pytest.mark.parametrize(
    ("words", "variables", "name", "size"),
    [
        (("--nnodes=2", "--nproc-per-node=4"), {"DDTOP_JOB": "a b"}, "a-b", 8),
        (("--nnodes=2:4", "--nproc-per-node=gpu"), {"DDTOP_JOB": "a"}, "a", 0),
        (("--nnodes=2", "--rdzv-id=run7"), {}, "run7", 2),
        (("--nnodes=2", "--rdzv-id=none"), {}, "tabular-PID", 2),
    ],
)
def test_the_name_is_the_one_that_its_ranks_will_choose(
    home, tmp_path, monkeypatch, words, variables, name, size
):
    monkeypatch.setenv("DDTOP", "1")
    monkeypatch.delenv("DDTOP_JOB", raising=False)
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    with torchrun(tmp_path, "alone", free_port(), *words) as pid:
        (job,) = [one for one in outside_jobs.find_jobs(waiting=True) if one.launchers == (pid,)]

    assert (job.name, job.world_size) == (name.replace("PID", str(pid)), size)
    assert job.announced


def test_an_ended_run_of_the_name_does_not_hide_the_launcher(named):
    write_ended(finished())
    entry = registry.read_entries()[0]
    registry.write_entry(replace(entry, job=NAME))

    assert [job.name for job in outside_jobs.before_ranks(NAME)] == [NAME]


def test_it_says_that_the_launcher_has_ended(home, tmp_path, monkeypatch):
    monkeypatch.setenv("DDTOP", "1")
    monkeypatch.setenv("DDTOP_JOB", NAME)
    with torchrun(tmp_path, "first", free_port()):
        before = outside_jobs.before_ranks(NAME)
        source = BeforeRanks(NAME)
        monkeypatch.setattr(find_job, "LAUNCHERS_EVERY_S", 0.0)
        launchers = find_job.Launchers(NAME)
        living = source._look_at(launchers)
        monkeypatch.setattr(find_job, "LAUNCHER_ENDED_S", 0.0)
    ended = source._look_at(launchers)

    assert len(before) == 1
    assert living.snapshot.world_size == 2
    assert ended.snapshot is None
    assert ended.contact.startswith(f"{NAME}: its launcher, ")
    assert ended.contact.endswith(", has ended, and no rank was seen")


def test_there_is_nothing_to_ask_before_the_first_rank():
    source = BeforeRanks(NAME)
    source.travel(None)

    assert asyncio.run(source.ask_stacks(())) == NOT_YET
    assert asyncio.run(source.send_signal(0, 15)) == NOT_YET
    assert source.look().snapshot is None
