"""Jobs of several hosts from the command line: one line each, and the way to their hub from wherever somebody types."""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
import time

import pytest

from ddtop import journal, registry
from ddtop.cli import across, reaching
from ddtop.cli.jobs import CommandError
from ddtop.ui import ways
from tests.cli.test_commands import finished
from tests.relay.test_server import Stage, is_a, sees_ranks

jobs = importlib.import_module("ddtop.cli.jobs")  # the package's own name `jobs` is the command
NOBODY = "feedfeedfeed"
"""The identity of another host."""


def entry(name="train-node0-29500", **more):
    now = time.time_ns()
    found = {
        "schema": registry.SCHEMA, "job": name, "run": "r1", "host": "node0", "sender": NOBODY, "relay_pid": os.getpid(),
        "relay_start_ticks": registry.start_ticks(os.getpid()), "address": "127.0.0.1", "port": 9, "socket": "",
        "script": "train", "world_size": 6, "reporting": 2, "started_unix_ns": now - 60_000_000_000, "heartbeat_unix_ns": now,
    }  # fmt: skip
    return registry.JobEntry(**(found | more))


def hub(**more):
    """It counts the ranks of all hosts, a leaf its own."""
    told = {"role": "hub", "reporting": 6, "public_address": "127.0.0.1", "public_port": 9}
    return entry(**(told | {"hosts": ("node1", "node2")} | more))


def leaf(number=1, **more):
    told = {
        "role": "leaf",
        "run": f"r{number}x",
        "host": f"node{number}",
        "sender": f"{NOBODY}{number}",
        "part_of": "r1",
    }
    return entry(**(told | {"hub": "127.0.0.1:9"} | more))


@pytest.fixture
def door():
    """Somebody who takes connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found.getsockname()[1]


@pytest.fixture
def here(home):
    """A relay on this host, and the port at which other hosts would find it."""
    stage = Stage(home)
    stage.rank()
    stage.heard(stage.viewer(), sees_ranks)
    end = time.monotonic() + 15
    while not registry.read_entries():
        assert time.monotonic() < end
        time.sleep(0.02)
    yield stage
    stage.close()


def ddtop(*words, **variables):
    environ = {name: value for name, value in os.environ.items() if name != "DDTOP_HUB"} | variables
    return subprocess.run(
        [sys.executable, "-m", "ddtop", *words], env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip


# -- the list


def test_a_job_of_three_hosts_is_one_line(home):
    for one in (hub(), leaf(1), leaf(2), entry("other", run="r9", reporting=6)):
        registry.write_entry(one)

    lines = ddtop("jobs").stdout.splitlines()

    assert len(lines) == 3
    (line,) = [line for line in lines if "3 hosts" in line]
    assert line.split()[:3] == ["train-node0-29500", "live", "6/6"]


def test_a_line_for_each_host_is_there_when_asked_for(home):
    for one in (hub(), leaf(1), leaf(2)):
        registry.write_entry(one)

    text = ddtop("jobs", "--all").stdout

    assert [word in text for word in ("node0 (hub)", "node1 (leaf)", "node2 (leaf)")] == [True] * 3


def test_json_has_the_hosts_of_a_job(home, monkeypatch):
    monkeypatch.setattr(jobs, "health", lambda entry, now: None)
    for one in (hub(), leaf(1), leaf(2)):
        registry.write_entry(one)

    (found,) = jobs.as_json()["jobs"]

    assert (sorted(found["hosts"]), found["reporting"], found["role"]) == (["node0", "node1", "node2"], 6, "hub")
    assert len(jobs.as_json(parts=True)["jobs"]) == 3


def test_a_job_whose_hub_has_ended_it_is_over_though_a_leaf_lingers(home):
    registry.write_entry(hub(ended_unix_ns=time.time_ns(), ended_reason="finished"))
    registry.write_entry(leaf(1))

    assert [line.split()[1] for line in ddtop("jobs").stdout.splitlines()] == ["STATE", "finished"]


def test_a_leaf_whose_hub_has_no_file_here_has_a_line_of_its_own(home):
    registry.write_entry(leaf(1))

    assert "node1" in ddtop("jobs").stdout
    assert registry.find_job(None, time.time_ns()).host == "node1"


# -- the way


def test_the_hub_of_a_job_is_meant_by_its_name(home):
    for one in (leaf(2), leaf(1), hub()):
        registry.write_entry(one)

    assert registry.find_job("train", time.time_ns()).role == "hub"


def test_a_hub_on_another_host_is_asked_at_its_public_address(home, door):
    there = hub(public_port=door, host=os.uname().nodename)

    assert reaching.route(there) == reaching.Route(there)
    assert there.endpoint() == ("127.0.0.1", door)


def test_a_hub_that_cannot_be_reached_leads_to_its_host_by_ssh(home):
    found = reaching.route(hub(public_address="node0.invalid"))

    assert (found.ssh, found.why) == ("node0", "not reachable: no host is called node0.invalid here")


def test_a_job_on_another_host_that_listens_there_only_leads_there_at_once(home):
    """Its port on 127.0.0.1 is somebody else's here: nobody knocks."""
    found = reaching.route(entry())

    assert (found.ssh, found.why) == ("node0", "it listens on its own host only")


def test_a_container_on_this_host_is_asked_at_this_hosts_own_address(home, door):
    """Same host name, own pid namespace, the host's network: docker run --network host."""
    there = entry(host=os.uname().nodename, port=door)

    assert reaching.route(there) == reaching.Route(there)


def test_a_leaf_leads_to_its_hub(home, door):
    found = reaching.route(leaf(1, sender=registry.host_identity(), hub=f"127.0.0.1:{door}"))

    assert found.port == ("127.0.0.1", door)
    assert found.entry.endpoint() == ("127.0.0.1", door)


def test_a_leaf_whose_hub_is_away_is_looked_at_for_its_own_host(home):
    here = leaf(1, sender=registry.host_identity())

    found = reaching.route(here)

    assert (found.entry, found.port, found.ssh) == (here, None, None)
    assert found.why == "this host only: its hub is not reachable: nobody listens on port 9 of 127.0.0.1"


def test_a_hub_that_is_cut_off_leads_to_the_part_that_is_on_this_host(home):
    """Its job file in the shared folder is as fresh as ever: only the way to it is gone."""
    here = leaf(1, sender=registry.host_identity())
    registry.write_entry(here)

    found = reaching.route(hub())

    assert (found.entry, found.port, found.ssh) == (here, None, None)
    assert found.why == "this host only: its hub is not reachable: nobody listens on port 9 of 127.0.0.1"


def test_what_an_ended_job_on_another_host_left_is_read_from_the_shared_folder(home):
    job = finished()
    ended = entry(ended_unix_ns=time.time_ns(), ended_reason="finished", world_size=2)
    registry.write_entry(ended)
    journal.write(registry.last_state_path(ended.job, ended.run, NOBODY), job.frames)

    done = ddtop("diagnose", ended.job)

    assert (done.returncode, done.stderr) == (0, "")
    assert "finished" in done.stdout


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        ("status", "ddtop status --ssh node0 train-node0-29500"),
        ("diagnose", "ddtop diagnose --ssh node0 train-node0-29500"),
        ("stacks", "ddtop stacks --ssh node0 train-node0-29500"),
        ("watch", "ssh node0 ddtop watch train-node0-29500"),
    ],
)
def test_a_command_that_cannot_ask_from_here_says_what_to_type(home, command, advice):
    registry.write_entry(entry())

    done = ddtop(command)

    assert (done.returncode, done.stdout) == (3, "")
    assert (
        "train-node0-29500 is on node0, and from here it cannot be asked: it listens on its own host only"
        in done.stderr
    )
    assert done.stderr.splitlines()[-1].strip() == advice


def test_attach_goes_there_by_itself(home, monkeypatch, capfd):
    from ddtop.cli import attaching, looking

    went = []
    monkeypatch.setattr(attaching, "over_ssh", lambda *given: went.append(given))
    monkeypatch.delenv("DDTOP_REMOTE", raising=False)

    assert looking.show_any(entry(), readonly=True) is False
    assert went == [("node0", None, "train-node0-29500", 0.0, True)]
    assert "is on node0: it listens on its own host only; going there by ssh" in capfd.readouterr().err


# -- --hub and DDTOP_HUB


@pytest.mark.parametrize("command", ["attach", "status", "diagnose"])
def test_a_relay_is_asked_at_its_port(here, tmp_path, command):
    """From a host without the job's file, with the job's key."""
    words = {"DDTOP_STATE": str(tmp_path / "empty"), "DDTOP_KEY": registry.secret().decode()}
    place = f"127.0.0.1:{here.server._link.port}"

    by_option, by_variable = ddtop(command, "--hub", place, **words), ddtop(command, DDTOP_HUB=place, **words)

    assert (by_option.returncode, by_variable.returncode) == (0, 0)
    assert "train" in by_option.stdout
    assert "train" in by_variable.stdout


@pytest.mark.parametrize(
    ("place", "code", "text"),
    [
        ("node0", 2, "takes HOST:PORT, not 'node0'"),
        ("node0:0", 2, "takes HOST:PORT"),
        ("127.0.0.1:9", 3, "nobody listens on port 9 of 127.0.0.1"),
        ("no-such-host.invalid:9", 3, "no host is called no-such-host.invalid here"),
    ],
)
def test_a_hub_that_is_none_is_said_with_the_reason(home, place, code, text):
    for done, said in ((ddtop("status", "--hub", place), "--hub"), (ddtop("status", DDTOP_HUB=place), "DDTOP_HUB")):
        assert (done.returncode, done.stdout) == (code, "")
        assert f"{said} " in done.stderr
        assert text in done.stderr
        assert "Traceback" not in done.stderr


def test_another_key_is_said_to_be_that_or_another_program(here, monkeypatch):
    monkeypatch.setattr(ways, "JOIN_S", 0.5)
    monkeypatch.setenv("DDTOP_KEY", "another key than the job's own")

    with pytest.raises(CommandError, match="another key") as error:
        reaching.asked_at(f"127.0.0.1:{here.server._link.port}")
    assert error.value.code == 3


@pytest.mark.parametrize(
    "words",
    [
        ["status", "x", "--hub", "a:1"],
        ["diagnose", "--hub", "a:1", "--ssh", "b"],
        ["stacks", "--pid", "1", "--ssh", "b"],
    ],
)
def test_ways_that_exclude_each_other_are_a_usage_error(home, words):
    done = ddtop(*words)

    assert (done.returncode, done.stdout) == (2, "")


def test_a_name_server_that_does_not_answer_holds_nobody_up(monkeypatch):
    import threading

    stands = threading.Event()
    monkeypatch.setattr(reaching, "_knock", lambda *given: stands.wait(60))
    try:
        assert reaching.no_contact("node0", 1, 0.05) == "not reachable: the name node0 was not resolved within 0 s"
    finally:
        stands.set()


# -- by ssh


def test_a_look_over_ssh_prints_what_is_printed_there(stand_in, here):
    done = ddtop("status", "--json", "--ssh", "there", **stand_in.environment)

    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["job"] == "train"


def test_its_exit_code_is_the_one_there(stand_in, home):
    done = ddtop("diagnose", "nosuch", "--for", "1", "--ssh", "there", **stand_in.environment)

    assert done.returncode == 3
    assert "no job named nosuch" in done.stderr


@pytest.mark.parametrize("name", ["a;b", "$(x)", "a b"])
def test_no_word_goes_to_another_hosts_shell_that_it_could_read_otherwise(stand_in, name):
    done = ddtop("status", "--ssh", "there", "--", name, **stand_in.environment)

    assert done.returncode == 2
    assert stand_in.bridges == []


@pytest.mark.parametrize(("host", "code"), [("-oProxyCommand=x", 2), ("", 2)])
def test_what_ssh_would_take_for_an_option_is_no_host(home, host, code):
    assert ddtop("status", f"--ssh={host}").returncode == code


def test_a_host_that_refuses_and_one_without_ddtop_are_told_apart(stand_in):
    stand_in.down()
    refused = ddtop("status", "--ssh", "there", **stand_in.environment)
    stand_in.up()
    missing = ddtop("status", "--ssh", "there", **stand_in.environment | {"DDTOP_REMOTE": "/nowhere/ddtop"})

    assert (refused.returncode, missing.returncode) == (3, 3)
    assert "no contact with there" in refused.stderr
    assert "/nowhere/ddtop is not found on there" in missing.stderr


# -- doctor


@pytest.fixture
def plain(home, monkeypatch):
    for name in [name for name in os.environ if name.startswith(("SLURM_", "OMPI_", "PMI"))]:
        monkeypatch.delenv(name)
    return monkeypatch


def variables(monkeypatch, **given):
    for name, value in given.items():
        monkeypatch.setenv(name, value)


def test_doctor_outside_of_a_job_says_where_to_ask(plain):
    assert across.spans()[0] == "ok"
    assert "srun ddtop doctor" in across.spans()[2]
    assert across.hub()[::2] == (
        "ok",
        "DDTOP_HUB is not set: other hosts find it in the shared state folder, or where the ranks meet",
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

    assert across.spans() == ("ok", "hosts", "rank 5 of 8, on several hosts: the hub would be at node7")

    variables(plain, SLURM_PROCID="0", DDTOP_HUB="node7:7777")
    assert "this would be the hub, on port 7777" in across.spans()[2]

    variables(plain, SLURM_STEP_NUM_NODES="1", DDTOP_HUB="")
    assert across.spans()[2] == "rank 0 of 8: a job on this host alone"


def test_doctor_says_where_nothing_tells_the_hosts_from_each_other(plain):
    variables(plain, OMPI_COMM_WORLD_RANK="5", OMPI_COMM_WORLD_SIZE="8", OMPI_COMM_WORLD_LOCAL_SIZE="4")

    assert across.spans()[0] == "bad"
    assert "set DDTOP_HUB=HOST:PORT on all of them" in across.spans()[2]


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

    found = across.hub()

    assert found[0] == mark
    assert text in found[2]


def test_doctor_joins_a_hub_that_answers_and_compares_clocks(here, plain):
    link = here.viewer()
    here.heard(link, is_a(type(here.heard(link, sees_ranks)[-1])))
    variables(plain, DDTOP_HUB=f"127.0.0.1:{here.server._link.port}")

    mark, _, text = across.hub()

    assert (mark, "answers to this key: train, 1 rank; clocks differ by less than 2 s" in text) == ("ok", True)
