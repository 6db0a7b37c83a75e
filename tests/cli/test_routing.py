"""Jobs of several hosts on the command line: one line each, and the route to their hub."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time

import pytest

from ddtop import journal, registry
from ddtop.cli import job_list, routing
from ddtop.present.jobs import Health
from tests.cli.commands import ddtop, finished
from tests.entries import fresh

NOBODY = "feedfeedfeed"
"""The identity of another host."""


def entry(name="train-node0-29500", **more):
    told = {"sender": NOBODY, "port": 9, "socket": "", "world_size": 6, "reporting": 2}
    process = {"relay_pid": os.getpid(), "relay_start_ticks": registry.start_ticks(os.getpid())}
    return fresh(name, **(told | process | more))


def hub(**more):
    """A hub counts the ranks of all hosts, a leaf only its own."""
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
def listener():
    """A port that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found.getsockname()[1]


# -- the list


def listed():
    """The lines of `ddtop jobs`, without the other jobs of this machine."""
    return ddtop("jobs").stdout.partition("not started with ddtop:")[0].splitlines()


def as_json(parts=False):
    return job_list.json_of(job_list.rows_of(registry.read_entries(), parts))["jobs"]


def test_a_job_of_three_hosts_is_one_line(home):
    for one in (hub(), leaf(1), leaf(2), entry("other", run="r9", reporting=6)):
        registry.write_entry(one)

    lines = listed()

    assert len(lines) == 3
    (line,) = [line for line in lines if "3 hosts" in line]
    assert line.split()[:3] == ["train-node0-29500", "unknown", "6/6"]


def test_a_line_for_each_host_is_there_when_asked_for(home):
    for one in (hub(), leaf(1), leaf(2)):
        registry.write_entry(one)

    text = ddtop("jobs", "--all").stdout

    assert [word in text for word in ("node0 (hub)", "node1 (leaf)", "node2 (leaf)")] == [True] * 3


def test_json_has_the_hosts_of_a_job(home, monkeypatch):
    monkeypatch.setattr(job_list, "healths", lambda entries: [Health("unknown") for _ in entries])
    for one in (hub(), leaf(1), leaf(2)):
        registry.write_entry(one)

    (found,) = as_json()

    assert (sorted(found["hosts"]), found["reporting"]) == (["node0", "node1", "node2"], 6)
    assert found["role"] == "hub"
    assert len(as_json(parts=True)) == 3


def test_a_job_whose_hub_has_ended_it_is_over_even_if_a_leaf_still_runs(home):
    registry.write_entry(hub(ended_unix_ns=time.time_ns(), ended_reason="finished"))
    registry.write_entry(leaf(1))

    assert [line.split()[1] for line in listed()] == ["HEALTH", "finished"]


def test_a_leaf_whose_hub_has_no_file_here_has_a_line_of_its_own(home):
    registry.write_entry(leaf(1))

    assert "node1" in ddtop("jobs").stdout
    assert registry.find_job(None, time.time_ns()).host == "node1"


# -- the route


def test_a_hub_on_another_host_is_asked_at_its_public_address(home, listener):
    there = hub(public_port=listener, host=os.uname().nodename)

    assert routing.route(there) == routing.RelayRoute(there)
    assert there.endpoint() == ("127.0.0.1", listener)


def test_a_hub_that_cannot_be_reached_leads_to_its_host_by_ssh(home):
    found = routing.route(hub(public_address="node0.invalid"))

    assert found.ssh == "node0"
    assert found.why == "not reachable: no host is called node0.invalid here"


def test_a_port_behind_a_firewall_is_reported_as_that(home):
    """A listener with a full queue does not answer, so it looks like a firewall."""
    with socket.socket() as full, contextlib.ExitStack() as waiting:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        for _ in range(4):
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        found = routing.no_contact("localhost", port, 0.3)

    assert found == (
        f"not reachable: localhost does not answer on port {port} within 0.3 s "
        "(a firewall, or the host is down)"
    )


def test_one_address_of_a_name_that_answers_is_enough(home, monkeypatch, listener):
    """The name has an IPv6 address to which there is no route from here."""
    asked = socket.getaddrinfo

    def several(host, port, *rest, **more):
        found = asked("127.0.0.1", port, *rest, **more)
        return (
            [(socket.AF_INET6, *found[0][1:4], ("100::1", port, 0, 0)), *found]
            if host == "node0"
            else found
        )

    monkeypatch.setattr(socket, "getaddrinfo", several)

    assert routing.no_contact("node0", listener, 0.3) is None


def test_a_job_that_listens_on_another_host_only_is_reached_through_ssh(home):
    """The hub's port may belong to another program on 127.0.0.1, so it is not tried there."""
    found = routing.route(entry())

    assert (found.ssh, found.why) == ("node0", "it listens on its own host only")


def test_a_container_on_this_host_is_asked_at_this_hosts_own_address(home, listener):
    """docker run --network host has the same host name and another pid namespace."""
    there = entry(host=os.uname().nodename, port=listener)

    assert routing.route(there) == routing.RelayRoute(there)


def test_a_leaf_leads_to_its_hub(home, listener):
    found = routing.route(leaf(1, sender=registry.host_identity(), hub=f"127.0.0.1:{listener}"))

    assert found.port == ("127.0.0.1", listener)
    assert found.entry.endpoint() == ("127.0.0.1", listener)


def test_a_leaf_whose_hub_is_unreachable_is_asked_itself(home):
    here = leaf(1, sender=registry.host_identity())

    found = routing.route(here)

    assert (found.entry, found.port, found.ssh) == (here, None, None)
    assert (
        found.why
        == "this host only: its hub is not reachable: nobody listens on port 9 of 127.0.0.1"
    )


def test_a_hub_that_is_cut_off_leads_to_the_leaf_on_this_host(home):
    """The hub's job file in the shared folder is fresh. Only the network is down."""
    here = leaf(1, sender=registry.host_identity())
    registry.write_entry(here)

    found = routing.route(hub())

    assert (found.entry, found.port, found.ssh) == (here, None, None)
    assert (
        found.why
        == "this host only: its hub is not reachable: nobody listens on port 9 of 127.0.0.1"
    )


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
        ("watch", "ddtop watch --ssh node0 train-node0-29500"),
    ],
)
def test_a_command_that_cannot_ask_from_here_says_what_to_type(home, command, advice):
    registry.write_entry(entry())

    done = ddtop(command)

    assert (done.returncode, done.stdout) == (3, "")
    assert (
        "train-node0-29500 is on node0, and from here it cannot be asked: "
        "it listens on its own host only" in done.stderr
    )
    assert done.stderr.splitlines()[-1].strip() == advice


def test_attach_goes_there_by_itself(home, monkeypatch, capfd):
    from ddtop.cli import attach_remote
    from ddtop.cli.commands.attach import show_job
    from ddtop.feeds.bridge import SshTarget

    went = []
    monkeypatch.setattr(attach_remote, "attach_through", lambda *given: went.append(given))
    monkeypatch.delenv("DDTOP_REMOTE", raising=False)

    assert show_job(entry(), readonly=True) is False
    assert went == [(SshTarget("node0"), "train-node0-29500", 0.0, True)]
    assert (
        "is on node0: it listens on its own host only; going there by ssh" in capfd.readouterr().err
    )


# -- by ssh


def test_a_look_over_ssh_prints_what_is_printed_there(stand_in, here):
    done = ddtop("status", "--json", "--ssh", "there", **stand_in.environment)

    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["job"] == "train"


def test_its_exit_code_is_the_one_there(stand_in, home):
    there = stand_in.environment
    done = ddtop("diagnose", "nosuch", "--for", "1", "--ssh", "there", **there, exits=3)

    assert "no job named nosuch" in done.stderr


@pytest.mark.parametrize("name", ["a;b", "$(x)", "a b"])
def test_a_word_that_a_shell_could_change_is_not_sent_to_another_host(stand_in, name):
    ddtop("status", "--ssh", "there", "--", name, **stand_in.environment, exits=2)

    assert stand_in.bridges == []


@pytest.mark.parametrize(("host", "code"), [("-oProxyCommand=x", 2), ("", 2)])
def test_a_word_that_ssh_takes_for_an_option_is_no_host(home, host, code):
    assert ddtop("status", f"--ssh={host}").returncode == code


def test_a_host_that_refuses_and_one_without_ddtop_have_different_messages(stand_in):
    stand_in.down()
    refused = ddtop("status", "--ssh", "there", **stand_in.environment)
    stand_in.up()
    missing = ddtop(
        "status", "--ssh", "there", **stand_in.environment | {"DDTOP_REMOTE": "/nowhere/ddtop"}
    )

    assert (refused.returncode, missing.returncode) == (3, 3)
    assert "no contact with there" in refused.stderr
    assert "/nowhere/ddtop is not found on there" in missing.stderr
