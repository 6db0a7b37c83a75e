"""Jobs that were started without ddtop, in the lists and in messages."""

from __future__ import annotations

import json
import os

import pytest

from ddtop import registry
from ddtop.cli import outside_jobs, pick_job
from ddtop.feeds.outside.jobs import jobs_of
from tests.cli.commands import ddtop
from tests.cli.outside import script_in, started
from tests.feeds.host import TORCHRUN, host, process, rank

WORLD = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}


@pytest.fixture
def job():
    return jobs_of(host(process(10, 1, TORCHRUN), rank(11, 10, 0, 2), rank(12, 10, 1, 2)))[0]


@pytest.mark.parametrize("command", [["jobs"], ["status"], ["diagnose"], []])
def test_a_job_without_ddtop_is_listed_with_the_command_that_looks_at_it(home, tmp_path, command):
    script = script_in(tmp_path)
    place = WORLD | {"MASTER_PORT": "29512"}
    with started(script, RANK="0", **place) as zero, started(script, RANK="1", **place) as one:
        done = ddtop(*command)

    text = done.stdout + done.stderr
    assert "not started with ddtop:" in text
    ways = (f"ddtop diagnose --pid {zero.pid},{one.pid}", f"ddtop diagnose --pid {os.getpid()}")
    (line,) = [line for line in text.splitlines() if line.endswith(ways)]
    assert "train, 2 of 2 ranks" in line


def test_json_has_such_jobs_apart_from_those_with_a_relay(home, tmp_path):
    script = script_in(tmp_path)
    with started(script, RANK="0", MASTER_PORT="29513", **WORLD | {"WORLD_SIZE": "1"}) as zero:
        listed = json.loads(ddtop("jobs", "--json").stdout)

    assert listed["jobs"] == []
    mine = [job for job in listed["outside"] if job["ranks"] == [{"rank": 0, "pid": zero.pid}]]
    assert [job["script"] for job in mine] == ["train"]


def test_the_entry_in_the_list_leads_to_the_processes(job):
    entry = outside_jobs.entry_of(job)

    assert outside_jobs.pids_in(entry) == outside_jobs.pids_of(job)
    assert (entry.job, entry.world_size, entry.reporting) == ("train-10", 2, 2)
    assert pick_job.health(entry).word == "not started with ddtop"


def test_other_entries_have_no_such_processes():
    assert outside_jobs.pids_in(registry.at_port("llama", "node1", 4711)) is None
