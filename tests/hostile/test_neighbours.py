"""Another process of this user on the ranks' socket: allowed, and none of its records does harm."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import sys

import msgspec
import psutil
import pytest

from ddtop import registry
from ddtop.link.packets import PIECE_BYTES, greeting, other_version
from ddtop.wire.records import Command, Exit, Group, Groups, Hello, HostState, RankState
from tests.speaking import process_with_link

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
    "ones": b"\xff" * 100,
    "a cut Hello": b"\x9b\x01\x00\xa5Hello\xa3abc",
    "too few fields": msgspec.msgpack.encode([1, 0, "Hello"]),
    "json": b'{"kind":"Hello"}',
    "pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07builtins\x94.",
    # Invalid UTF-8 raised another exception than a decode error.
    "a kind of no text": b"\x94\x01\x00\xa5\xff\xff\xff\xff\xff\xa1h",
    "another version": msgspec.msgpack.encode([9, 0, "Hello"]),
    "a rank of its own kind": msgspec.msgpack.encode(
        [1, 0, "Hello", "h", 0, 0, os.getpid(), 1, 1, None, ["Hello"] * 3]
    ),
}


def envelope(record: bytes, kind="RankState"):
    """A frame of this process whose record is these bytes."""
    pid = os.getpid()
    return msgspec.msgpack.encode([1, 0, kind, "h", 0, 0, pid, 1, 1, None, msgspec.Raw(record)])


def test_data_that_is_not_a_frame_is_counted_and_dropped(scene):
    before = scene.host(lambda _: True).garbled
    neighbour = scene.on_the_unix_socket()
    for data in BOMBS.values():
        neighbour.send(data)
        neighbour.send(envelope(data or b"\xc0", "Hello"))
    count = 2 * len(BOMBS)

    assert scene.host(lambda state: state.garbled >= before + count).garbled == before + count
    scene.serves()


@pytest.mark.job
def test_a_flood_of_tiny_frames_is_counted_and_makes_nobody_wait(scene):
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

    scene.host(lambda state: state.garbled == before + wanted)
    scene.serves()
    assert scene.process.memory_info().rss - size < 16 << 20


def test_a_packet_that_is_too_large_ends_only_the_connection_of_its_sender(scene):
    neighbour = scene.on_the_unix_socket()
    neighbour.packet(b"F" + b"x" * (PIECE_BYTES + 100))

    assert neighbour.is_closed()
    scene.serves()


@pytest.mark.parametrize(
    "pieces",
    [[(1, 0, 0)], [(1, 0, 60_000)], [(1, 1, 3)], [(1, 0, 3), (1, 2, 3)], [(1, 0, 3), (2, 1, 3)]],
    ids=["of none", "of too many", "begins in the middle", "one is left out", "of another frame"],
)
def test_pieces_that_do_not_make_a_frame_are_counted(scene, pieces):
    before = scene.host(lambda _: True).garbled
    neighbour = scene.on_the_unix_socket()
    for number, index, count in pieces:
        neighbour.packet(b"P" + struct.pack("<IHH", number, index, count) + b"x" * 1000)

    scene.host(lambda state: state.garbled > before)
    scene.serves()


def test_incomplete_frames_of_all_connections_together_are_bounded(scene):
    """Each of ten processes begins a frame of a mebibyte again and again, and never completes
    one.
    """
    size = scene.process.memory_info().rss
    before = scene.host(lambda _: True).garbled
    path = str(registry.socket_path("train", "r1"))
    senders = [
        subprocess.Popen([sys.executable, "-c", HALF, path], stdout=subprocess.PIPE)
        for _ in range(10)
    ]
    for sender in senders:
        sender.communicate()

    scene.host(lambda state: state.garbled >= before + 1000)
    scene.serves()
    assert scene.process.memory_info().rss - size < 48 << 20


HALF = """
import socket, struct, sys
link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
link.connect(sys.argv[1])
link.sendall(b"ddtop-link" + struct.pack("<BH", 0, 1) + b"0")
for number in range(101):
    for index in range(15):
        link.sendall(b"P" + struct.pack("<IHH", number, index, 16) + bytes(1 << 16))
"""


def test_one_process_gets_only_a_few_connections(scene):
    """It may have had one connection closed. A thousand would leave no descriptor for the ranks."""
    refused = scene.refused
    held = [scene.on_the_unix_socket(greets=False) for _ in range(50)]
    for one in held:
        # The relay may close a connection before it has sent anything.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            one.packet(greeting("0"))
    closed = [one for one in held[10:] if one.is_closed()]

    assert len(closed) == 40
    assert scene.refused >= refused + 40
    scene.serves()


def test_a_greeting_in_another_version_is_refused_and_told_ours(scene):
    refused = scene.refused
    neighbour = scene.on_the_unix_socket(greets=False)
    neighbour.packet(b"ddtop-link" + struct.pack("<BH", 0, 999) + b"9.9\x1b[2J")
    neighbour.socket.settimeout(30)
    theirs = neighbour.socket.recv(1000)

    assert other_version(theirs) is None
    assert neighbour.is_closed()
    assert scene.refused == refused + 1
    scene.serves()


def test_a_frame_about_another_process_is_refused_and_counted(scene):
    """Another rank must not report for a rank: neither its state nor its Hello."""
    refused = scene.refused
    neighbour = scene.on_the_unix_socket()
    neighbour.send(scene.seal(RankState("running", iteration=666), scene.pid))
    neighbour.send(scene.seal(scene.hello(scene.pid), scene.pid))
    # The envelope is of this process, the Hello in it is of the rank.
    neighbour.send(scene.seal(scene.hello(scene.pid), os.getpid()))
    found = []
    scene.hears(
        lambda record: (
            found.append(record)
            or (isinstance(record, HostState) and record.refused == refused + 3)
        )
    )

    assert not [one for one in found if isinstance(one, RankState) and one.iteration == 666]
    assert not [one for one in found if isinstance(one, Hello)]
    scene.serves()


@pytest.mark.parametrize("number", [-1, 0, 9, 19, 65, 1 << 40])
def test_a_hello_with_a_nonexistent_signal_is_refused_and_counted(scene, number):
    """A shift by such a number ended the relay."""
    refused = scene.refused
    hello = msgspec.structs.replace(scene.hello(os.getpid()), dump_signal=number)
    scene.on_the_unix_socket().send(scene.seal(hello, os.getpid()))

    assert scene.host(lambda state: state.refused > refused).refused == refused + 1
    scene.serves()


def test_a_forked_child_on_its_parents_connection_speaks_for_its_parent(scene):
    """The credentials are always those of the process that connected. A child has to make a
    connection of its own.
    """
    refused = scene.refused
    neighbour = scene.on_the_unix_socket()
    child = os.fork()
    if child == 0:
        own = os.getpid()
        neighbour.send(scene.seal(RankState("running"), own))
        neighbour.socket.close()
        os._exit(0)
    os.waitpid(child, 0)
    scene.host(lambda state: state.refused == refused + 1)
    # The parent's connection is unaffected.
    neighbour.send(scene.seal(RankState("running", iteration=4711), os.getpid()))
    scene.hears(lambda record: isinstance(record, RankState) and record.iteration == 4711)

    scene.serves()


def test_thousands_of_invented_ranks_hosts_and_groups_do_not_make_the_relay_grow(scene):
    """A process may report only for itself. Its reports about thousands of others are counted."""
    size = scene.process.memory_info().rss
    before = scene.refused
    neighbour = scene.on_the_unix_socket()
    for number in range(6000):
        hello = msgspec.structs.replace(
            scene.hello(scene.pid, number), pid=1 << 22 | number, start_ticks=1
        )
        neighbour.send(scene.seal(hello, 1 << 22 | number, number, sender=f"h{number}"))
        if number % 6 == 0:
            groups = Groups(
                tuple(Group(f"g{number}-{k}", "x" * 50, (number, k), "gloo") for k in range(50))
            )
            neighbour.send(scene.seal(groups, 1 << 22 | number, number))

    state = scene.host(lambda state: state.refused >= before + 7000)

    assert [one.pid for one in state.processes] == [scene.pid]
    assert scene.process.memory_info().rss - size < 48 << 20
    scene.serves()


def test_a_hello_for_another_process_makes_the_relay_watch_nobody(scene):
    """The start time must be that of the process, so that a recycled pid is not taken for the rank
    that had it before.

    A pid above the kernel's limit ended the relay once.
    """
    neighbour = scene.on_the_unix_socket()
    for pid in (-1, 0, 1, 2, 1 << 31, 1 << 62, os.getpid()):
        hello = msgspec.structs.replace(scene.hello(scene.pid), pid=pid, start_ticks=1)
        neighbour.send(scene.seal(hello, pid, 1))
    scene.serves()

    assert {one.pid for one in scene.host(lambda _: True).processes} == {scene.pid}


@pytest.mark.parametrize(
    "path",
    ["/etc/shadow", "/dev/shm/../../etc/passwd", "/proc/self/mem", "/dev/zero", "\0", "x" * 5000],
)
def test_a_page_or_dump_file_of_another_name_is_neither_opened_nor_removed(scene, path):
    child, link = process_with_link(registry.socket_path("train", "r1"), "sys.stdin.read()")
    try:
        hello = msgspec.structs.replace(
            scene.hello(child.pid, 1), page_path=path, dump_path=path, dump_signal=34, dump_fd=0
        )
        link.send(scene.seal(hello, child.pid, 1))
        scene.host(lambda state: any(one.pid == child.pid for one in state.processes))
    finally:
        child.kill()
        child.communicate()
        link.close()
    ended = scene.hears(lambda record: isinstance(record, Exit) and record.pid == child.pid)

    assert (ended.signal, ended.exception) == (signal.SIGKILL, None)
    assert os.path.exists("/etc/passwd")
    scene.serves()


def test_silent_connections_do_not_keep_new_ranks_out(scene):
    """Two hundred of one process, and some that are not greetings."""
    held = [scene.on_the_unix_socket(greets=False) for _ in range(200)]
    for one, data in zip(
        held, (os.urandom(3000), b"GET / HTTP/1.1\r\n\r\n", b"ddtop-link", b"\0"), strict=False
    ):
        one.packet(data)
    child, link = process_with_link(registry.socket_path("train", "r1"), "sys.stdin.read()")
    link.send(scene.seal(RankState("running", iteration=1_000_001), child.pid))
    try:
        scene.hears(lambda record: isinstance(record, RankState) and record.iteration == 1_000_001)
    finally:
        child.communicate()
        link.close()

    scene.serves()
    assert psutil.pid_exists(scene.process.pid)
