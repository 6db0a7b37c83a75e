"""NCCL's status service: its protocol, foreign bytes, and when it is asked."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack, closing
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtop.policy import POLICY
from ddtop.relay.gpus import ras
from ddtop.relay.gpus.ras import (
    NOT_ASKED,
    REPORTED_RANKS_MAX,
    Ras,
    address_of,
    ask,
    of_job,
    parse_json,
    parse_text,
)
from ddtop.wire.frames import FRAME_BYTES_MAX
from ddtop.wire.records import CommStatus, Communicator, Hello, RasAnswer, RasRank
from tests.relay.gpus.answers import ALL, ANSWERS
from tests.relay.gpus.ras_service import GREETS, NEW, Service, answer, rank

TEXT = (ANSWERS / "2.27.5/behind.txt").read_text()


@pytest.fixture
def service():
    with ExitStack() as ends:
        yield lambda *scripts: ends.enter_context(closing(Service(*scripts)))


OLD = (
    *GREETS,
    ("SET", b"ERROR: Unknown command SET FORMAT json\n"),
    ("MON", b"ERROR: Unknown command MONITOR ?\n"),
)
JSON_ONLY = (*GREETS, ("MON", b"ERROR: Unknown command MONITOR ?\n"))


def test_json_is_asked_for_and_read(service):
    one = service((GREETS, json.dumps(answer(rank(0, 4800), rank(1, 4801, 811))).encode()))
    found = ask(one.address)

    assert one.said == [["CLIENT PROTOCOL 2", "SET FORMAT json", "STATUS"]]
    (communicator,) = found.communicators
    assert (found.nccl, found.why, communicator.size) == ("2.29.7", None, 2)
    assert communicator.state == "ok"
    assert [(each.number, each.pid, each.counts["AllReduce"]) for each in communicator.ranks] == [
        (0, 4800, 812),
        (1, 4801, 811),
    ]


def test_a_release_that_knows_no_json_is_asked_for_text(service):
    """2.24 to 2.28.3; torch 2.8 to 2.11 ship such."""
    one = service((OLD, TEXT.encode()))
    found = ask(one.address)

    assert one.said[0][-1] == "VERBOSE STATUS"
    assert (found.text, found.nccl) == (True, "2.27.5")
    (late,) = found.communicators[0].ranks
    assert (late.number, late.pid, late.host, late.state) == (2, 4121, "127.0.0.1", "behind")


def test_json_that_cannot_be_read_is_not_asked_for_again(service):
    """A second request may take ten seconds, and the text of such a release contains no more."""
    one = service((GREETS, b'{"communicators": [ {]'))

    assert "its JSON cannot be read" in (ask(one.address).why or "")
    assert len(one.said) == 1


@pytest.mark.parametrize("release", [OLD, JSON_ONLY])
def test_before_2_29_it_is_not_asked_while_a_rank_is_missing(service, release):
    """It would read beyond its buffer, and over IPv6 allocate gigabytes."""
    one = service((release, b"never sent"))

    assert ask(one.address, whole=False).why == NOT_ASKED
    assert one.said[0][-1] == "MONITOR ?"


def test_from_2_29_on_it_is_asked_while_a_rank_is_missing(service):
    one = service((NEW, json.dumps(answer(rank(0, 4800))).encode()))

    assert ask(one.address, whole=False).why is None
    assert one.said[0][-2:] == ["MONITOR ?", "STATUS"]


def test_a_stopped_process_that_takes_the_question_is_passed_over(service, monkeypatch):
    """All processes share the port, and the kernel may choose a stopped one."""
    monkeypatch.setattr(ras, "GREETING_S", 0.1)
    one = service((None, None), (None, None), (GREETS, json.dumps(answer(rank(0, 4800))).encode()))
    found = ask(one.address)

    assert (found.why, len(found.communicators)) == (None, 1)
    assert [heard[0] for heard in one.said] == ["CLIENT PROTOCOL 2"] * 3


def test_where_all_are_stopped_it_is_reported(service, monkeypatch):
    monkeypatch.setattr(ras, "GREETING_S", 0.05)
    one = service(*[(None, None)] * ras.TRIES)

    assert "the process that listens there does not answer" in (ask(one.address).why or "")


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ({}, "ok"),
        ({"init_state": 7}, "init"),
        ({"init_state": 3}, "error"),
        # An operation of a communicator that does not block is in progress; NCCL's own text says
        # RUNNING.
        ({"async_error": 7}, "ok"),
        ({"async_error": 6}, "error"),
        ({"abort_flag": True}, "abort"),
        ({"finalize_called": True}, "finalize"),
        ({"destroy_flag": 1}, "finalize"),
    ],
)
def test_the_state_of_a_rank(status, state):
    (communicator,) = parse_json(json.dumps(answer(rank(0, 1, **status)))).communicators

    assert communicator.ranks[0].state == state


@pytest.mark.parametrize(
    ("status", "state"),
    [({"considered_dead": True}, "dead"), ({"unresponsive": True}, "unresponsive"), ({}, "left")],
)
def test_peers_that_do_not_answer(status, state):
    gone = {"rank": 1, "host": "node1", "pid": 4801, "status": status}
    (communicator,) = parse_json(json.dumps(answer(rank(0, 4800), missing=(gone,)))).communicators

    assert (communicator.state, communicator.size) == ("bad", 2)
    assert [(each.number, each.state) for each in communicator.ranks] == [(0, "ok"), (1, state)]


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"

    assert "ConnectionRefused" in (ask(address).why or "")


@pytest.mark.parametrize(
    "address", ["", "nonsense", "localhost:", "localhost:99999", "localhost:x"]
)
def test_an_address_that_is_none(address):
    assert ask(address).why


def test_a_stranger_on_that_port_is_told_so(service):
    one = service(((("CLIENT", b"HTTP/1.1 400 Bad Request\r\n"),), b""))

    assert "no NCCL listens there" in (ask(one.address).why or "")


def test_one_that_never_answers_is_given_up(service):
    one = service(((("CLIENT", b"SERVER PROTOCOL 2\n"), ("SET", b"")), None))

    assert "imeout" in (ask(one.address, 0.2).why or "")


def test_an_answer_without_end_is_cut(service, monkeypatch):
    monkeypatch.setattr(ras, "ANSWER_BYTES_MAX", 1000)
    one = service((GREETS, b"x" * 100_000))

    assert "an answer of more than" in (ask(one.address).why or "")


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "communicators",
                    "ranks",
                    "missing_ranks",
                    "status",
                    "collective_counts",
                    "pid",
                    "rank",
                    "host",
                    "size",
                    "init_state",
                    "hash",
                    "nccl_version",
                    "AllReduce",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(ANY_JSON)
def test_any_json_gives_an_answer_that_fits_the_record(said):
    found = parse_json(json.dumps(said))

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=RasAnswer) == found


LINES = sorted({line for name in ALL for line in (ANSWERS / name).read_text().splitlines()})


@given(st.text(max_size=300) | st.lists(st.sampled_from(LINES), max_size=60).map("\n".join))
def test_any_text_gives_an_answer_that_fits_the_record(text):
    for found in (parse_text(text), parse_json(text)):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=RasAnswer) == found


@given(st.binary(max_size=200))
def test_any_bytes_are_read_as_something(data):
    parse_text(data.decode(errors="replace"))
    parse_json(data.decode(errors="replace"))


def test_communicators_of_another_job_on_the_same_port_are_left_out():
    """Two jobs of one user on a node share the port, and the kernel chooses which one answers."""
    ours = Communicator("world", 4, (RasRank(0, "node0", 4800), RasRank(1, "node1", 4801)))
    part = Communicator("tensor", 2, (RasRank(0, "node1", 4801),))
    theirs = Communicator("other", 2, (RasRank(0, "node0", 9900),))

    assert of_job(RasAnswer((theirs, part, ours)), {4800}).communicators == (ours, part)


def test_an_answer_of_very_many_ranks_fits_a_frame():
    ranks = tuple(
        RasRank(n, "node" * 10, n, "ok" if n != 4000 else "dead", 0, {"AllReduce": 10**9 + n})
        for n in range(4096)
    )
    told = of_job(RasAnswer(tuple(Communicator(str(n), 4096, ranks) for n in range(8))), {5})

    assert sum(len(one.ranks) for one in told.communicators) == REPORTED_RANKS_MAX
    assert "dead" in {one.state for one in told.communicators[0].ranks}
    assert len(msgspec.msgpack.encode(CommStatus(told))) < FRAME_BYTES_MAX // 2


def hello(number=0, backend="nccl", heard_s=float("inf"), state="S", size=1, **environment):
    """A rank that the relay watches."""
    said = Hello(
        "job",
        "r1",
        0,
        number,
        number,
        size,
        "node0",
        4800 + number,
        1,
        backend=backend,
        environment=environment,
    )
    return SimpleNamespace(hello=said, heard_mono_ns=heard_s * 1e9, last_state=state, freezer=None)


def asked(monkeypatch, hellos, seconds, step=1.0, sees=True):
    """The moments at which the service was asked, while a collective is stuck all the time."""
    found: list[float] = []
    watch = Ras(POLICY)
    monkeypatch.setattr(ras, "ask", lambda *_: RasAnswer())
    for number in range(int(seconds / step)):
        now = 100.0 + number * step
        if sees:
            watch.note_stuck(now)
        before = watch._asked
        watch.look(now, hellos)
        if watch._asked != before:
            found.append(now - 100.0)
        if watch._thread is not None:
            watch._thread.join(10)
    return found


def test_it_is_asked_after_two_seconds_and_then_every_ten(monkeypatch):
    assert asked(monkeypatch, [hello()], 25) == [2.0, 12.0, 22.0]


def test_where_no_interpreter_runs_the_silence_of_the_agents_is_reason_enough(monkeypatch):
    """C code holds each GIL, so no agent reports; they were heard at 105 s."""
    frozen = [hello(0, heard_s=105.0), hello(1, heard_s=105.0)]

    assert asked(monkeypatch, frozen, 25, sees=False) == [11.0, 21.0]
    assert asked(monkeypatch, [hello(0), hello(1)], 25, sees=False) == []


@pytest.mark.parametrize(
    ("ranks", "elsewhere", "whole"),
    [
        ([hello(0, size=2), hello(1, size=2)], 0, True),
        ([hello(0, size=2)], 0, False),
        ([hello(0, size=2)], 1, True),
        ([hello(0, size=2), hello(1, size=2, state="T")], 0, False),
        ([hello(0, size=2), hello(1, size=2, state="t")], 0, False),
        ([hello(0, size=None)], 0, False),
        ([], 0, False),
    ],
)
def test_a_job_is_whole_while_all_its_ranks_are_there_and_run(ranks, elsewhere, whole):
    assert ras.is_whole(ranks, elsewhere) is whole


@pytest.mark.parametrize("missing", [True, False])
def test_a_question_that_was_not_asked_has_no_answer(monkeypatch, missing):
    told = []
    monkeypatch.setattr(
        ras, "ask", lambda *arguments: told.append(arguments) or RasAnswer(why=NOT_ASKED)
    )
    watch = Ras(POLICY)
    ranks = [hello(0, size=2), *([] if missing else [hello(1, size=2)])]
    for second in range(6):
        watch.note_stuck(float(second))
        assert watch.look(float(second), ranks) is None
        if watch._thread is not None:
            watch._thread.join(10)

    assert [arguments[2] for arguments in told] == [not missing]


@pytest.mark.parametrize(
    "hellos", [[], [hello(backend="gloo")], [hello(1)], [hello(NCCL_RAS_ENABLE="0")]]
)
def test_without_nccl_or_rank_0_or_switched_off_nobody_is_asked(monkeypatch, hellos):
    """One relay asks for the job: each answer makes NCCL contact all its processes."""
    assert asked(monkeypatch, hellos, 25) == []


def test_a_job_that_moves_is_left_alone(monkeypatch):
    watch = Ras(POLICY)
    monkeypatch.setattr(ras, "ask", lambda *_: pytest.fail("asked"))
    for second in range(0, 60, 3):
        watch.note_stuck(float(second))
        assert watch.look(second + 0.5, [hello()]) is None


def test_an_answer_is_given_once_and_of_this_job_only(monkeypatch):
    watch = Ras(POLICY)
    both = RasAnswer(
        (
            Communicator("a", 1, (RasRank(0, "n", 4800),)),
            Communicator("b", 1, (RasRank(0, "n", 1),)),
        )
    )
    monkeypatch.setattr(ras, "ask", lambda *_: both)
    told = []
    for second in range(6):
        watch.note_stuck(float(second))
        told.append(watch.look(float(second), [hello()]))
        if watch._thread is not None:
            watch._thread.join(10)
    (first,) = [one for one in told if one is not None]

    assert [one.name for one in first.communicators] == ["a"]


def test_an_answer_tells_for_how_long_it_has_been_the_same(monkeypatch):
    """The order of the entries and the process that answers do not matter."""
    first, second = (
        Communicator(name, 1, (RasRank(0, "n", 4800, counts={"AllReduce": 1}),)) for name in "ab"
    )
    moved = msgspec.structs.replace(first, ranks=(RasRank(0, "n", 4800, counts={"AllReduce": 2}),))
    said = [(first, second), (second, first), (moved, second)]
    monkeypatch.setattr(ras, "ask", lambda *_: RasAnswer(said.pop(0)))
    watch = Ras(POLICY)
    told = []
    for second_s in range(27):
        watch.note_stuck(float(second_s))
        told.append(watch.look(float(second_s), [hello()]))
        if watch._thread is not None:
            watch._thread.join(10)

    assert [one.same_ms for one in told if one is not None] == [0, 10_000, 0]


def test_the_address_may_be_chosen():
    assert address_of([{}]) == "localhost:28028"
    assert address_of([{}, {"NCCL_RAS_ADDR": "localhost:12345"}]) == "localhost:12345"
    assert address_of([]) is None
