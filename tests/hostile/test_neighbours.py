"""Another process of this user talks to the socket of the ranks: allowed, and still nothing that it says may hurt."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import msgspec
import psutil
import pytest

from ddtop import registry
from ddtop.wire.frames import FRAME_BYTES_MAX
from ddtop.wire.records import Command, Exit, Group, Groups, HostState, RankState, Reply

DEEP = b"\x91" * 200_000
BOMBS = {
    "empty": b"",
    "one byte": b"\xc1",
    "nested without end": DEEP,
    "an array of 4 G": b"\xdd\xff\xff\xff\xff",
    "a map of 4 G": b"\xdf\xff\xff\xff\xff",
    "a text of 4 GB": b"\xdb\xff\xff\xff\xff",
    "bytes of 4 GB": b"\xc6\xff\xff\xff\xff",
    "an extension of 4 GB": b"\xc9\xff\xff\xff\xff\x01",
    "json": b'{"kind":"Hello"}',
    "pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07builtins\x94.",
    "another version": msgspec.msgpack.encode([9, 0, "Hello"]),
    "a rank of its own kind": msgspec.msgpack.encode([1, 0, "Hello", "h", 0, 0, 1, 1, 1, None, ["Hello"] * 3]),
}


def envelope(record: bytes, kind="RankState", pid=1):
    """A frame whose record is these bytes."""
    return msgspec.msgpack.encode([1, 0, kind, "h", 0, 0, pid, 1, 1, None, msgspec.Raw(record)])


def test_what_is_no_frame_is_counted_and_dropped(scene):
    before = scene.host(lambda _: True).garbled
    neighbour = scene.on_the_unix_socket()
    for data in BOMBS.values():
        neighbour.send(data)
        neighbour.send(envelope(data or b"\xc0", "Hello"))
    count = 2 * len(BOMBS) + 1  # The `join` that it said first is none of a rank's either.

    assert scene.host(lambda state: state.garbled >= before + count).garbled == before + count
    scene.serves()


@pytest.mark.parametrize(
    "record",
    [HostState("h", 1), Exit(0, 1, 0, None, False, 0, "pidfd"), Command("join"), Reply("live")],
    ids=lambda record: type(record).__name__,
)
def test_what_only_a_relay_may_say_is_not_taken_from_a_rank(scene, record):
    """Else a rank could tell of the ends of others."""
    before = scene.host(lambda _: True).garbled
    neighbour = scene.on_the_unix_socket()
    neighbour.send(scene.seal(record, scene.pid))

    scene.host(lambda state: state.garbled == before + 2)
    scene.serves()


def test_a_flood_of_tiny_frames_is_counted_and_keeps_nobody_waiting(scene):
    """Twenty thousand here; two million by hand."""
    before = scene.host(lambda _: True).garbled
    size = scene.process.memory_info().rss
    neighbour = scene.on_the_unix_socket()
    wanted = int(os.environ.get("DDTOP_TEST_FLOOD", "20000"))
    for number in range(wanted):
        neighbour.send(b"\x90")
        if number % 5000 == 0:
            scene.order(scene.viewer, Command("ping"))
        if number % (wanted // 4) == wanted // 8:
            scene.serves()

    scene.host(lambda state: state.garbled == before + wanted + 1)
    scene.serves()
    assert scene.process.memory_info().rss - size < 16 << 20


def test_a_frame_that_is_too_large_ends_its_senders_connection_only(scene):
    neighbour = scene.on_the_unix_socket()
    monitor = neighbour.get_monitor_socket()
    neighbour.send(b"\x90" + b"x" * FRAME_BYTES_MAX)
    from zmq import EVENT_DISCONNECTED
    from zmq.utils.monitor import recv_monitor_message

    try:
        while monitor.poll(30_000) and recv_monitor_message(monitor)["event"] != EVENT_DISCONNECTED:
            pass
    finally:
        neighbour.disable_monitor()
        monitor.close(0)

    scene.serves()


def test_thousands_of_invented_ranks_hosts_and_groups_do_not_grow_the_relay(scene):
    """Their processes do not exist, so they are not watched; the newest frame of each is kept up to a limit, then counted."""
    size = scene.process.memory_info().rss
    before = scene.host(lambda _: True).dropped
    neighbour = scene.on_the_unix_socket()
    for number in range(6000):
        hello = msgspec.structs.replace(scene.hello(scene.pid, number), pid=1 << 22 | number, start_ticks=1)
        neighbour.send(scene.seal(hello, 1 << 22 | number, number, sender=f"h{number}"))
        if number % 6 == 0:
            groups = Groups(tuple(Group(f"g{number}-{k}", "x" * 50, (number, k), "gloo") for k in range(50)))
            neighbour.send(scene.seal(groups, 1 << 22 | number, number))

    state = scene.host(lambda state: state.dropped > before)

    assert [one.pid for one in state.processes] == [scene.pid]
    assert scene.process.memory_info().rss - size < 48 << 20
    scene.serves()


def test_a_hello_for_a_process_that_is_none_of_its_own_makes_the_relay_watch_nobody(scene):
    """Its start time has to be that of the process: a recycled pid is not taken for the rank that had it before.

    A pid that is larger than the kernel takes ended the relay once.
    """
    neighbour = scene.on_the_unix_socket()
    for pid in (-1, 0, 1, 2, 1 << 31, 1 << 62, os.getpid()):
        hello = msgspec.structs.replace(scene.hello(scene.pid), pid=pid, start_ticks=1)
        neighbour.send(scene.seal(hello, pid, 1))
    scene.serves()

    assert {one.pid for one in scene.host(lambda _: True).processes} == {scene.pid}


@pytest.mark.parametrize(
    "path", ["/etc/shadow", "/dev/shm/../../etc/passwd", "/proc/self/mem", "/dev/zero", "\0", "x" * 5000]
)
def test_a_page_or_dump_file_of_another_name_is_never_opened_nor_removed(scene, path):
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        hello = msgspec.structs.replace(
            scene.hello(child.pid, 1), page_path=path, dump_path=path, dump_signal=34, dump_fd=0
        )
        scene.on_the_unix_socket().send(scene.seal(hello, child.pid, 1))
        scene.host(lambda state: any(one.pid == child.pid for one in state.processes))
    finally:
        child.kill()
        child.communicate()
    ended = scene.hears(lambda record: isinstance(record, Exit) and record.pid == child.pid)

    assert (ended.signal, ended.exception) == (signal.SIGKILL, None)
    assert os.path.exists("/etc/passwd")
    scene.serves()


def test_connections_that_say_nothing_do_not_stop_new_ranks(scene):
    path = str(registry.socket_path("train", "r1"))
    held = []
    for _ in range(200):
        held.append(socket.socket(socket.AF_UNIX))
        held[-1].connect(path)
    held[0].sendall(os.urandom(3000))
    held[1].sendall(b"GET / HTTP/1.1\r\n\r\n")
    rank = scene.another_rank()
    number = 1_000_001
    rank.send(scene.seal(RankState("running", iteration=number), scene.pid))
    scene.hears(lambda record: isinstance(record, RankState) and record.iteration == number)
    for one in held:
        one.close()

    scene.serves()
    assert psutil.pid_exists(scene.process.pid)
