"""The unix socket between a rank and its relay.

No call blocks, no queue grows without a bound, and no file of the program is touched.
"""

import contextlib
import errno
import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import closing

import pytest

import ddtop
from ddtop.link import rank_listener, rank_side
from ddtop.link.packets import (
    PACKET_BYTES_MAX,
    PIECE_BYTES,
    REJOIN_S,
    PacketError,
    Rejoiner,
    greeting,
    packets_of,
)
from ddtop.link.rank_listener import RankListener
from ddtop.link.rank_side import QUEUE_FRAMES, RankLink
from ddtop.wire.frames import FRAME_BYTES_MAX
from tests.speaking import raw

DEADLINE_S = 15.0


@pytest.fixture
def path(home):
    return home.runtime / "r.link"


@pytest.fixture
def listener(path):
    found = RankListener(path)
    yield found
    found.close()


@pytest.fixture
def rank(path):
    found = RankLink(path)
    yield found
    found.close()


def until(what, *moved):
    """The result of this call, as soon as there is one. `moved` are called meanwhile."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        if found := what():
            return found
        for one in moved:
            one()
    raise AssertionError("it never came")


def heard(listener, rank, wanted=1):
    """The frames that arrive at the relay's end: at least this many."""
    frames = []

    def look():
        frames.extend(frame for _, frame in listener.receive(500))
        return len(frames) >= wanted

    until(look, lambda: rank.wait(0.01))
    return frames


def connection(listener, rank):
    """The name of the connection that this rank has made."""
    rank.send(b"hello")
    return until(lambda: [name for name, _ in listener.receive(500)], lambda: rank.wait(0.01))[0]


# -- both ways


def test_rank_and_relay_hear_each_other(listener, rank):
    name = connection(listener, rank)
    assert listener.send(name, b"alive")

    assert until(rank.receive, lambda: rank.wait(0.01)) == b"alive"
    assert listener.credentials(name).pid == os.getpid()
    assert listener.credentials(name).uid == os.getuid()
    assert (rank.drops, listener.refused, listener.broken) == (0, 0, 0)


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 300_000, FRAME_BYTES_MAX])
def test_a_frame_of_any_size_arrives_as_it_was(listener, rank, size):
    """The largest frame is five times as long as what the kernel accepts at once."""
    frame = os.urandom(size)
    rank.send(frame)
    rank.send(b"after it")

    assert heard(listener, rank, 2) == [frame, b"after it"]
    assert listener.broken == 0


def test_a_frame_that_is_too_large_is_not_sent_and_counted(listener, rank):
    assert not rank.send(bytes(FRAME_BYTES_MAX + 1))
    rank.send(b"x")

    assert heard(listener, rank) == [b"x"]
    assert rank.drops == 1


def test_an_order_in_pieces_arrives_too(listener, rank):
    order = os.urandom(100_000)
    assert listener.send(connection(listener, rank), order)

    assert until(rank.receive, lambda: rank.wait(0.01)) == order


def test_a_wake_from_another_thread_ends_the_wait(listener, rank):
    connection(listener, rank)
    until(lambda: rank.receive() is None and not rank.wait(0.0)[1])
    waker = threading.Thread(target=rank.wake)
    began = time.monotonic()
    waker.start()
    woken, readable = rank.wait(DEADLINE_S)
    waker.join()

    assert (woken, readable) == (True, False)
    assert time.monotonic() - began < DEADLINE_S / 2


# -- the relay does not read


def test_without_a_relay_a_rank_drops_the_oldest_and_counts_and_never_blocks(rank):
    """The relay was killed, or never started. A step must not get slower by a microsecond for
    that.
    """
    sent = [rank.send(b"%d" % number) for number in range(100)]

    assert sum(sent) == QUEUE_FRAMES
    assert rank.drops == 100 - QUEUE_FRAMES


def test_what_waited_for_the_relay_is_the_newest(rank, path):
    for number in range(100):
        rank.send(b"%d" % number)
    with closing(RankListener(path)) as listener:
        assert heard(listener, rank, QUEUE_FRAMES) == [
            b"%d" % number for number in range(100 - QUEUE_FRAMES, 100)
        ]


def test_a_relay_that_reads_nothing_costs_a_rank_no_time_and_no_memory(listener, rank):
    """The relay is stopped: its kernel buffer takes some frames, the queue eight more."""
    connection(listener, rank)
    began = time.monotonic()
    sent = sum(rank.send(b"%05d" % number + bytes(10_000)) for number in range(1000))
    took_s = time.monotonic() - began
    kept = [int(frame[:5]) for frame in heard(listener, rank, sent)]

    assert took_s < 2.0
    assert rank.drops == 1000 - sent
    assert 8 < sent < 60
    # The newest are among the frames that arrived in the end, in order.
    assert kept == sorted(kept)
    assert kept[-QUEUE_FRAMES:] == list(range(1000 - QUEUE_FRAMES, 1000))


def test_a_rank_that_reads_nothing_never_holds_the_relay_up(listener, rank):
    name = connection(listener, rank)

    assert not all(listener.send(name, bytes(10_000)) for _ in range(1000))


def test_a_frame_that_stays_half_sent_is_given_up(listener, rank, monkeypatch):
    connection(listener, rank)
    rank.send(bytes(FRAME_BYTES_MAX))
    monkeypatch.setattr(rank_side, "REJOIN_S", 0.0)
    monkeypatch.setattr("ddtop.link.packets.REJOIN_S", 0.0)
    rank.wait(0.0)

    assert rank.drops == 1
    rank.send(b"the next")
    assert heard(listener, rank) == [b"the next"]
    assert listener.broken == 1


# -- the relay restarts


def test_after_a_restart_of_the_relay_the_rank_connects_again(rank, path):
    first = RankListener(path)
    connection(first, rank)
    first.close()
    with closing(RankListener(path)) as second:
        rank.send(b"after")
        assert b"after" in heard(second, rank)


def test_a_frame_that_was_half_sent_when_the_relay_ended_is_sent_again_as_a_whole(rank, path):
    first = RankListener(path)
    connection(first, rank)
    frame = os.urandom(FRAME_BYTES_MAX)
    rank.send(frame)
    first.close()
    with closing(RankListener(path)) as second:
        assert heard(second, rank) == [frame]
        assert second.broken == 0


def test_where_nobody_listens_it_tries_a_few_times_a_second_and_no_more(path, monkeypatch):
    tried = []

    def connect(path):
        tried.append(time.monotonic())
        raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens")

    monkeypatch.setattr(rank_side, "connect", connect)
    link = RankLink(path)
    link.wait(1.0)
    link.close()

    assert 3 <= len(tried) <= 8


# -- other versions


def test_a_relay_of_another_version_gives_a_clear_error_and_is_left_alone(path, monkeypatch):
    monkeypatch.setattr(
        rank_listener, "greeting", lambda version: b"ddtop-link" + struct.pack("<BH", 0, 7) + b"9.9"
    )
    listener = RankListener(path)
    link = RankLink(path)
    try:
        until(
            lambda: "install" in link.refusal,
            lambda: list(listener.receive(10)),
            link.receive,
            lambda: link.wait(0.01),
        )
        assert link.refusal == (
            "the relay of this job runs ddtop 9.9 (link protocol 7), "
            f"this rank ddtop {ddtop.__version__}: install the same version everywhere"
        )
        assert link.receive() is None
    finally:
        link.close()
        listener.close()


# -- descriptors that the program closes


@pytest.mark.parametrize("kind", ["file", "pipe", "socket"])
def test_a_descriptor_that_became_the_programs_is_never_written_to(listener, rank, tmp_path, kind):
    """`os.closerange(3, 256)`, and then the program opens files of its own.

    Those files get the numbers of our descriptors.
    """
    connection(listener, rank)
    ours = {rank._socket.descriptor, rank._bell.descriptor}
    for descriptor in ours:
        os.close(descriptor)
    opened, read = [], []
    while not ours <= set(opened):
        if kind == "file":
            opened.append(os.open(tmp_path / str(len(opened)), os.O_RDWR | os.O_CREAT))
        elif kind == "pipe":
            opened.extend(os.pipe())
        else:
            # It is of the same type as ours, so send would not refuse it.
            pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            opened.extend(one.detach() for one in pair)
    try:
        rank.wake()
        for number in range(20):
            rank.send(b"%d" % number)
            rank.wait(0.01)
            rank.receive()
        assert heard(listener, rank)
        for descriptor in opened:
            if kind == "file":
                read.append(os.fstat(descriptor).st_size)
            else:
                ready = select.poll()
                ready.register(descriptor, select.POLLIN)
                read += [events for _, events in ready.poll(0)]
        rank.close()
        still_open = [descriptor for descriptor in opened if os.fstat(descriptor)]
    finally:
        for descriptor in opened:
            os.close(descriptor)

    assert not any(read)
    assert still_open == opened


def test_a_program_that_closes_all_it_can_see_costs_a_reconnection_and_nothing_else(home):
    """libzmq called abort() in 12 of 15 such programs."""
    path = home.runtime / "r.link"
    listener = RankListener(path)
    program = (
        "import os, sys, pathlib\n"
        "from ddtop.link.rank_side import RankLink\n"
        "link = RankLink(pathlib.Path(sys.argv[1]))\n"
        "for number in range(60):\n"
        "    if number % 10 == 0: os.closerange(3, 256)\n"
        "    link.send(b'%d' % number); link.wait(0.02); link.receive()\n"
        "link.close(1000)\n"
        "print('done', link.drops)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE)
    try:
        frames = []
        until(
            lambda: child.poll() is not None,
            lambda: frames.extend(frame for _, frame in listener.receive(500)),
        )
        frames += [frame for _, frame in listener.receive(500)]
        said = child.communicate()[0]
    finally:
        listener.close()

    assert child.returncode == 0
    assert said.startswith(b"done")
    assert frames[-1] == b"59"


def test_a_forked_child_that_leaves_closes_nothing_of_its_parents(listener, rank):
    """The child's copies are closed, and the parent's connection is not shut down."""
    name = connection(listener, rank)
    child = os.fork()
    if child == 0:
        rank.leave()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    rank.send(b"still here")

    assert heard(listener, rank) == [b"still here"]
    assert listener.credentials(name) is not None


def test_without_a_descriptor_left_it_only_drops(path, listener):
    """`ulimit -n` is low. libzmq ended the training in that case."""
    code = (
        "import resource, sys, pathlib, os\n"
        "from ddtop.link.rank_side import RankLink\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))\n"
        "link = RankLink(pathlib.Path(sys.argv[1]))\n"
        "for _ in range(20): link.send(b'x'); link.wait(0.01); link.wake()\n"
        "link.close(); print(link.drops)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )

    assert (done.stdout, done.stderr) == ("12\n", "")


# -- pieces


def test_pieces_of_a_frame_make_that_frame_and_what_is_left_out_is_counted():
    rejoiner = Rejoiner()
    packets = list(packets_of(b"ab" * 100_000, 5))
    for packet in packets[:-1]:
        assert rejoiner.take(packet, 1.0) is None
    assert rejoiner.take(packets[-1], 1.0) == b"ab" * 100_000
    assert (rejoiner.broken, rejoiner.held_bytes) == (0, 0)

    rejoiner.take(packets[0], 2.0)
    assert rejoiner.take(b"Fwhole", 2.0) == b"whole"
    rejoiner.take(packets[0], 3.0)
    with pytest.raises(PacketError):
        rejoiner.take(packets[2], 3.0)
    rejoiner.take(packets[0], 4.0)
    rejoiner.expire(4.1 + REJOIN_S)
    assert (rejoiner.broken, rejoiner.held_bytes) == (3, 0)


def test_a_packet_is_never_larger_than_its_limit():
    assert max(len(packet) for packet in packets_of(bytes(FRAME_BYTES_MAX), 1)) == PACKET_BYTES_MAX


def test_who_does_not_greet_is_let_go(listener, path, monkeypatch):
    monkeypatch.setattr(rank_listener, "GREET_S", 0.0)
    monkeypatch.setattr(rank_listener, "TEND_EVERY_S", 0.0)
    with raw(path):
        until(lambda: listener.refused, lambda: list(listener.receive(10)))

    assert len(listener) == 0


def test_one_connection_that_floods_is_read_in_turn_with_the_others(listener, path):
    """At most sixty-four packets each, so that no peer waits for a flood to end."""
    with raw(path) as flood, raw(path) as other:
        for one in (flood, other):
            one.sendall(greeting("0"))
        flood.setblocking(False)
        sent = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                flood.send(b"Fx")
                sent += 1
        other.sendall(b"Fother")
        frames = [frame for _, frame in listener.receive(500)] + [
            frame for _, frame in listener.receive(500)
        ]

        assert sent > 200
        assert b"other" in frames
        assert len(frames) <= 2 * rank_listener.PACKETS_AT_ONCE + 1
