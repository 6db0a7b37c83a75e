"""Recorded answers of NCCL's status service (`ras_answers/README.md`), and what is read of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddtop.relay.gpus import ras
from ddtop.relay.gpus.ras import of_job, parse_json, parse_text
from ddtop.wire.records import RasAnswer
from tests.relay.gpus.answers import ALL, ANSWERS


def read(name: str) -> RasAnswer:
    text = (ANSWERS / name).read_text()
    return parse_json(text) if name.endswith(".json") else parse_text(text)


def odd(name: str) -> list[dict[int, str]]:
    """The unhealthy ranks of each communicator."""
    return [
        {rank.number: rank.state for rank in one.ranks if rank.state != "ok"}
        for one in read(name).communicators
    ]


@pytest.mark.parametrize("name", ALL)
def test_every_answer_is_understood_and_tells_its_release_and_the_sizes(name):
    found = read(name)
    release, _, what = name.partition("/")
    sizes = [4, 2, 2] if what.startswith("three") else [4]
    sizes = {"eight-none": [8], "nodes-behind": [2], "nodes-dead": [2], "ghosts": [4, 2]}.get(
        Path(what).stem, sizes
    )

    assert (found.why, found.nccl, found.text) == (None, release, name.endswith(".txt"))
    assert [one.size for one in found.communicators if one.name] == sizes


@pytest.mark.parametrize(
    ("name", "states"),
    [
        ("2.24.3/healthy.txt", [{}]),
        ("2.24.3/behind.txt", [{2: "behind"}]),
        ("2.24.3/left.txt", [{3: "left"}]),
        # It distinguishes missing ranks and missing processes.
        ("2.24.3/dead.txt", [{2: "unresponsive"}, {-1: "dead"}]),
        ("2.26.5/behind.txt", [{2: "behind"}]),
        ("2.27.5/healthy.txt", [{}]),
        ("2.27.5/behind.txt", [{2: "behind"}]),
        ("2.27.5/visible-behind.txt", [{2: "behind"}]),
        ("2.27.5/init.txt", [{3: "init"}]),
        ("2.27.5/init-all.txt", [{}]),
        ("2.27.5/init-error.txt", [{3: "error"}]),
        ("2.27.5/async.txt", [{1: "error"}]),
        ("2.27.5/async-three.txt", [{0: "error", 1: "error", 3: "error"}]),
        ("2.27.5/abort.txt", [{1: "abort"}]),
        ("2.27.5/finalize.txt", [{1: "finalize"}]),
        ("2.27.5/left.txt", [{3: "left"}]),
        ("2.27.5/unresponsive.txt", [{2: "unresponsive"}]),
        ("2.27.5/dead.txt", [{2: "dead"}]),
        ("2.27.5/three-comms.txt", [{}, {}, {}]),
        ("2.27.5/three-comms-behind.txt", [{}, {1: "behind"}, {}]),
        ("2.27.5/eight-none.txt", [{5: "behind"}]),
        ("2.27.5/ghosts.txt", [{2: "unresponsive"}, {0: "unresponsive"}]),
        ("2.28.3/behind.txt", [{2: "behind"}]),
        ("2.28.7/unresponsive.json", [{2: "unresponsive"}]),
        ("2.28.9/healthy.json", [{}]),
        ("2.28.9/left.json", [{3: "left"}]),
        ("2.28.9/three-comms-dead.json", [{2: "dead"}, {0: "dead"}, {}]),
        ("2.28.9/cut-off.json", [{0: "dead", 1: "dead", 3: "dead"}]),
        ("2.29.7/unresponsive.txt", [{2: "unresponsive"}]),
        ("2.29.7/nodes-behind.json", [{}]),
        ("2.29.7/nodes-dead.json", [{1: "dead"}]),
        ("2.30.7/behind.json", [{}]),
        ("2.30.7/init.json", [{3: "init"}]),
        ("2.30.7/async.json", [{1: "error"}]),
        ("2.30.7/abort.json", [{1: "abort"}]),
        ("2.30.7/finalize.json", [{1: "finalize"}]),
        ("2.30.7/left.json", [{3: "left"}]),
        ("2.30.7/dead.json", [{2: "dead"}]),
        ("2.30.7/eight-none.json", [{}]),
        ("2.30.7/cut-off.txt", [{0: "dead", 1: "dead", 3: "dead"}]),
    ],
)
def test_who_is_not_well(name, states):
    assert odd(name) == states


def test_no_recording_is_left_out():
    told = {arguments[0] for mark in test_who_is_not_well.pytestmark for arguments in mark.args[1]}

    assert told == set(ALL)


@pytest.mark.parametrize(
    ("name", "usual", "uneven"),
    [
        ("2.24.3/behind.txt", {"collectives": 812}, {2: 811}),
        ("2.26.5/behind.txt", {"AllReduce": 812}, {2: 811}),
        ("2.27.5/behind.txt", {"AllReduce": 812}, {2: 811}),
        ("2.27.5/visible-behind.txt", {"AllReduce": 812}, {2: 811}),
        ("2.27.5/init.txt", {"AllReduce": 812}, {3: 0}),
        ("2.27.5/eight-none.txt", {"AllReduce": 811}, {0: 812, 5: 0}),
        ("2.28.3/behind.txt", {"AllReduce": 812}, {2: 811}),
        ("2.29.7/nodes-behind.json", {"AllReduce": 812}, {1: 811}),
        ("2.30.7/behind.json", {"AllReduce": 812}, {2: 811}),
        ("2.30.7/eight-none.json", {"AllReduce": 811}, {0: 812, 5: 0}),
    ],
)
def test_who_has_launched_more_or_less_than_most(name, usual, uneven):
    (one,) = read(name).communicators
    ((op, most),) = usual.items()

    assert one.usual[op] == most
    assert {
        rank.number: rank.counts[op] for rank in one.ranks if rank.counts.get(op, most) != most
    } == uneven


@pytest.mark.parametrize(
    ("name", "process"),
    [
        ("2.24.3/dead.txt", (-1, "127.0.0.1", 3900, None)),
        ("2.27.5/behind.txt", (2, "127.0.0.1", 4121, 2)),
        # With CUDA_VISIBLE_DEVICES a GPU has one number in the program and another on the machine.
        ("2.27.5/visible-behind.txt", (2, "127.0.0.1", 4131, 0)),
        ("2.28.9/left.json", (3, "127.0.0.1", 4565, 3)),
        ("2.29.7/nodes-behind.json", (1, "10.0.0.2", 1, 0)),
    ],
)
def test_a_rank_has_its_process_and_the_address_of_its_host(name, process):
    rank = max(read(name).communicators[-1].ranks, key=lambda one: one.number)

    assert (rank.number, rank.host, rank.pid, rank.gpu) == process


@pytest.mark.parametrize(
    ("name", "states"),
    [
        ("2.27.5/healthy.txt", ["ok"]),
        ("2.27.5/init-all.txt", ["init"]),
        ("2.27.5/behind.txt", ["bad"]),
        ("2.28.9/healthy.json", ["ok"]),
        ("2.28.9/three-comms-dead.json", ["bad", "bad", "ok"]),
        ("2.30.7/init.json", ["init"]),
    ],
)
def test_the_state_of_a_communicator(name, states):
    assert [one.state for one in read(name).communicators] == states


BAD = [
    name
    for name in ALL
    if name.startswith("2.28.") and name.endswith(".json") and "healthy" not in name
]


@pytest.mark.parametrize("name", BAD)
def test_the_json_of_2_28_lacks_one_comma_in_each_missing_rank_and_nothing_else(name):
    """Adding the commas by hand gives the same result as ddtop."""
    text = (ANSWERS / name).read_text()
    with pytest.raises(ValueError, match="Expecting ',' delimiter"):
        json.loads(text)
    lines = text.splitlines()
    for number, line in enumerate(lines[1:], 1):
        if line.strip() == '"status": {' and not lines[number - 1].endswith(","):
            lines[number - 1] += ","

    assert json.loads("\n".join(lines))["communicators"]
    assert parse_json(text) == parse_json("\n".join(lines))


def test_what_is_told_of_another_host_stays_in_the_text():
    """This relay knows all processes of its own host, and none of other hosts."""
    told = parse_text(
        (ANSWERS / "2.29.7/unresponsive.txt").read_text().replace("127.0.0.1", "192.0.2.7")
    )

    assert of_job(told, {1, 2}).communicators == told.communicators


def test_what_is_told_of_a_stranger_on_this_host_does_not():
    """Another job of this user that shares the port."""
    told = read("2.27.5/behind.txt")

    assert of_job(told, {4121}).communicators == told.communicators
    assert of_job(told, {5000}).communicators == ()


@pytest.mark.parametrize(
    ("address", "here"),
    [
        ("127.0.0.1", True),
        ("192.0.2.7", False),
        ("localhost", False),
        ("", False),
        ("::ffff", False),
    ],
)
def test_which_addresses_are_of_this_host_is_not_looked_up(address, here):
    assert ras._is_here(address) is here
