"""What viewers request from a relay: stacks of its ranks, and signals to them."""

import time
from contextlib import closing

import pytest

from ddtop.relay.triggers import DumpTrigger
from ddtop.wire import frames
from ddtop.wire.records import Command, HostState, RankState, StackFrame, Stacks, ThreadStack
from tests.relay.stage import DEADLINE_S, Stage, is_reply, sees_ranks


def stacks_of(pid, request, rank=0):
    main = ThreadStack((StackFrame("step", "train.py", 7, True),), "MainThread", 1, True)
    return Stacks(request, rank, pid, time.time_ns(), "agent", (main,))


def asked(link):
    """The next order to dump that an agent gets."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        data = link.receive()
        record = frames.open_record(frames.open_envelope(data)) if data else None
        if isinstance(record, Command) and record.name == "dump":
            return record
        link.wait(0.01)
    raise AssertionError("was not asked")


def is_stacks(record):
    return isinstance(record, Stacks)


def order(link, name, *arguments):
    link.send(
        frames.seal(Command(name, arguments=arguments), sender="viewer", unix_ns=0, mono_ns=0)
    )


def test_stacks_that_one_viewer_asked_for_reach_all(stage, agents_count_as_heard):
    link, pid = stage.rank()
    viewer, other = stage.viewer(), stage.viewer()
    stage.heard(viewer, sees_ranks)
    stage.heard(other, sees_ranks)
    order(viewer, "stacks", "q1", "", "")
    request = asked(link)
    stage.says(link, stacks_of(pid, "q1"))

    reply = stage.heard(viewer, is_reply("stacks"))[-1]
    found = [stage.heard(one, is_stacks)[-1] for one in (viewer, other)]

    assert request.arguments == ("q1", "")
    assert (reply.ok, reply.count, reply.text) == (True, 1, "q1")
    assert [(one.request, one.method, one.pid) for one in found] == [("q1", "agent", pid)] * 2


def test_only_the_ranks_that_were_named_are_asked(stage):
    stage.rank(0)
    stage.rank(1)
    viewer = stage.viewer()
    stage.heard(viewer, lambda record: isinstance(record, HostState) and len(record.processes) == 2)
    order(viewer, "stacks", "q1", "1,5-7", "")

    assert stage.heard(viewer, is_reply("stacks"))[-1].count == 1


def test_a_rank_without_dump_signal_whose_agent_is_silent_is_answered_for_with_the_reason(stage):
    """Then the relay tries the signal, if a controller asked for it, and then py-spy."""
    stage.rank(0, dump_off="switched off by DDTOP_SIGNAL")
    viewer = stage.viewer(controller=True)
    order(viewer, "join")
    stage.heard(viewer, sees_ranks)
    order(viewer, "stacks", "q1", "0", "signal")

    found = stage.heard(viewer, is_stacks)[-1]

    assert found.method == "py-spy" or "switched off by DDTOP_SIGNAL" in found.why


@pytest.mark.parametrize("arguments", [(), ("",), ("q", "x"), ("q", "1-"), ("q", "-1", "native")])
def test_a_malformed_request_is_refused_with_the_reason(stage, arguments):
    viewer = stage.viewer(Command("stacks", arguments=arguments))

    reply = stage.heard(viewer, is_reply("stacks"))[-1]

    assert (reply.ok, bool(reply.text)) == (False, True)


def test_a_late_viewer_gets_the_last_stacks_with_the_history(stage):
    link, pid = stage.rank()
    stage.says(link, stacks_of(pid, "auto-1"))
    stage.heard(stage.viewer(), is_stacks)

    history = stage.heard(stage.viewer(), is_reply("live"))

    assert [record.request for record in history if isinstance(record, Stacks)] == ["auto-1"]


def stuck(stage, link, pid, seconds):
    """An agent that reports a stuck collective for this long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        link.send(
            frames.seal(
                RankState("running"),
                sender="h",
                unix_ns=time.time_ns(),
                mono_ns=time.monotonic_ns(),
                rank=0,
                pid=pid,
                stuck_key="default_pg|5|0",
            )
        )
        data = link.receive()
        record = frames.open_record(frames.open_envelope(data)) if data else None
        if isinstance(record, Command) and record.name == "dump":
            return record
        link.wait(0.1)
    return None


@pytest.fixture
def asks_soon(monkeypatch):
    monkeypatch.setattr("ddtop.relay.triggers.AUTO_DUMP_STUCK_S", 0.3)


def test_something_that_is_stuck_makes_the_relay_ask_by_itself_once(
    stage, agents_count_as_heard, asks_soon
):
    stage.server._requests._dump_trigger = DumpTrigger(enabled=True)
    link, pid = stage.rank()

    first = stuck(stage, link, pid, DEADLINE_S)
    again = stuck(stage, link, pid, 1.0)

    assert first is not None
    assert first.arguments[1] == "auto"
    assert again is None


def test_automatic_dumps_can_be_switched_off(home, monkeypatch, asks_soon):
    monkeypatch.setenv("DDTOP_AUTODUMP", "0")
    with closing(Stage(home)) as stage:
        link, pid = stage.rank()
        found = stuck(stage, link, pid, 1.5)

    assert found is None
