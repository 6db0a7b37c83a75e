"""Orders of viewers: only a controller may signal, and only ranks of this job and user."""

import os
import signal
import subprocess
import time

import pytest

from ddtop.relay.requests import EVERY_S
from ddtop.wire import frames
from ddtop.wire.records import Command, HostState, Order, Reply, Stacks


def send(scene, viewer, *arguments):
    return scene.reply(viewer, Command("signal", arguments=tuple(str(one) for one in arguments)))


FOREIGN = [
    (0, 1, 9),
    (0, -1, 9),
    (0, 0, 9),
    (0, "self", 9),
    (0, os.getpid(), 9),
    (0, 1 << 40, 9),
    (0, "1 2", 9),
    (0, "x", 9),
    (0, "", 9),
    (0, "9" * 20, 9),
    ("0,1", 4730, 9),
    (-1, 4730, 9),
    ("", "", ""),
    (),
    (0,),
    (0, 4730),
    (0, 4730, 9, 9),
    (0, 4730, -9),
    (0, 4730, 999),
    ("\u0660", "\u0661", "\u0669"),
    ("0" * 5000, 4730, 9),
    ("0; kill 1", 4730, 9),
]


def test_a_signal_to_a_process_that_is_not_a_rank_of_this_job_is_refused_with_the_reason(scene):
    controller = scene.joined(controller=True)
    replies = [send(scene, controller, *arguments) for arguments in FOREIGN]

    assert [(reply.ok, bool(reply.text)) for reply in replies] == [(False, True)] * len(FOREIGN)
    scene.serves()


def test_a_read_only_viewer_cannot_send_a_signal_whatever_it_claims(scene):
    """Its role follows from its key."""
    viewer = scene.joined()
    for claim in ((), ("controller",)):
        assert (
            send(scene, viewer, 0, scene.pid, int(signal.SIGKILL), *claim).text
            == "this viewer is read-only"
        )
    viewer.send(scene.seal(scene.hello(scene.pid), scene.pid, sender="controller"))

    scene.serves()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_a_process_of_another_user_that_is_called_a_rank_gets_no_signal(scene):
    """A relay of root may signal every process, so it believes a process only about itself."""
    child = subprocess.Popen(["/bin/sleep", "600"], user=65534, group=65534, extra_groups=[])
    try:
        scene.on_the_unix_socket().send(scene.seal(scene.hello(child.pid, 1), child.pid, 1))
        scene.serves()
        reply = send(scene, scene.joined(controller=True), 1, child.pid, int(signal.SIGTERM))
        lived = child.poll() is None
    finally:
        child.kill()
        child.wait()

    assert (reply.ok, lived) == (False, True)
    assert reply.text == f"rank 1 with pid {child.pid} is not running here (any more)"
    scene.serves()


def test_an_unknown_order_changes_nothing(scene):
    """The request is answered or counted, never followed."""
    before = scene.host(lambda _: True).garbled
    viewer = scene.joined()
    names = ("", "exec", "dump", "alive", "arrivals", "\x1b]0;x\x07", "x" * 50_000)
    for name in names:
        scene.order(viewer, Command(name, arguments=("a",) * 100))
        scene.order(viewer, Command("signal"))
        seen = scene.hears(
            lambda record, name=name: isinstance(record, Reply) and record.name in (name, "signal"),
            viewer,
        )
        assert not seen.ok
        assert len(seen.text) < 200

    scene.serves()
    assert scene.host(lambda _: True).garbled <= before + len(names)


@pytest.mark.job
def test_a_flood_of_requests_for_stacks_is_answered_and_bounded(scene):
    """Two hundred requests at once: the rank is asked, and nothing waits longer for its reports."""
    size = scene.process.memory_info().rss
    viewer = scene.joined()
    for number in range(200):
        scene.order(viewer, Command("stacks", arguments=(f"flood-{number}", "", "")))
    last = scene.hears(
        lambda record: isinstance(record, Reply) and record.text == "flood-199", viewer
    )
    scene.serves()

    assert last.name == "stacks"
    assert scene.process.memory_info().rss - size < 16 << 20


@pytest.mark.job
def test_a_flood_of_requests_asks_the_rank_once_in_two_seconds(scene):
    """A thousand requests per second slowed a job from 72 steps a second to 10."""
    viewer, began, number, orders = scene.joined(), time.monotonic(), 0, 0
    while (seconds := time.monotonic() - began) < 3.0:
        number += 1
        scene.order(viewer, Command("stacks", arguments=(f"many-{number}", "0", "")))
        said = [frames.open_record(frames.open_envelope(data)) for data in viewer.receive(0.002)]
        orders += sum(isinstance(record, Order) for record in said)

    assert number > 100
    assert 1 <= orders <= 2 + seconds / EVERY_S
    scene.serves()


@pytest.mark.parametrize("how", ["native", "signal"])
def test_stacks_that_may_disturb_a_rank_are_refused_to_a_read_only_viewer(scene, how):
    """py-spy stops the process while it reads, and a signal may end a call in C."""
    reply = scene.reply(scene.joined(), Command("stacks", arguments=("n1", "0", how)))

    assert (reply.ok, "read-only" in reply.text) == (False, True)


def test_native_stacks_are_taken_once_in_half_a_minute(scene):
    controller = scene.joined(controller=True)
    first, second = (
        scene.reply(controller, Command("stacks", arguments=(name, "0", "native")))
        for name in ("n2", "n3")
    )

    assert (first.ok, second.ok) == (True, False)
    assert "again in" in second.text


def test_stacks_by_signal_are_reported_to_all_with_the_person_who_asked(scene):
    controller = scene.joined(controller=True)
    reply = scene.reply(controller, Command("stacks", arguments=("s1", "0", "signal")))
    told = scene.hears(
        lambda record: isinstance(record, Order) and record.what == "stacks-by-signal"
    )

    assert (reply.ok, told.ranks, "controller" in told.by[0]) == (True, "0", True)


def test_each_order_is_reported_to_all_with_the_person_who_gave_it(scene):
    """The next morning it can be read who signalled a rank at night."""
    controller = scene.joined(controller=True)
    scene.order(
        controller,
        Command(
            "signal",
            instance="eve@node9",
            pid=4730,
            arguments=("0", str(scene.pid), str(int(signal.SIGCONT))),
        ),
    )
    told = scene.hears(lambda record: isinstance(record, Order) and record.what == "signal")
    scene.order(
        controller,
        Command("stacks", instance="eve@node9", pid=4730, arguments=("audited", "0", "")),
    )
    dump = scene.hears(
        lambda record: (
            isinstance(record, Order) and record.what == "stacks" and "eve" in str(record.by)
        )
    )

    assert told.by == dump.by[-1:] == ("eve@node9 pid 4730 (controller, from 127.0.0.1)",)
    assert told.ranks == "0"
    assert told.text == f"sent SIGCONT to rank 0 (pid {scene.pid})"
    assert told.ok is True
    assert dump.ranks == "0"


def test_a_history_of_any_length_can_be_asked_for(scene):
    """Infinity ended the relay once."""
    for history_s in (-1.0, float("inf"), float("-inf"), float("nan"), 1e300, 1e-300):
        viewer = scene.another_viewer()
        scene.order(viewer, Command("join", history_s=history_s))
        joined = scene.hears(lambda record: isinstance(record, Reply), viewer)
        assert joined.name == "joined"
    scene.serves()


def test_records_of_ranks_and_relays_are_not_taken_from_a_viewer(scene):
    """Otherwise every viewer could change the history of the job."""
    before = scene.host(lambda _: True).garbled
    viewer = scene.joined()
    for record in (
        scene.hello(scene.pid),
        HostState("h", 1),
        Stacks("r", 0, 1, 1, "agent", ()),
        Reply("live"),
    ):
        viewer.send(scene.seal(record, scene.pid, sender="viewer"))

    assert scene.host(lambda state: state.garbled >= before + 4).host != "h"
    scene.serves()
