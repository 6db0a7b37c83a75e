"""What the wrappers of MPI calls write to the state page. They run without mpi4py."""

from __future__ import annotations

import random
import sys
import threading

import pytest

from ddtop.agent.guard import guard
from ddtop.agent.limits import LIMITS
from ddtop.agent.mpi import communicators, entry
from ddtop.agent.mpi.communicators import TRAFFIC_KEYS_MAX, uid_of
from ddtop.agent.mpi.probe import MpiProbe
from ddtop.agent.mpi.wrappers import Lines
from ddtop.agent.probe import Tick
from ddtop.wire import mpi as layout
from ddtop.wire import page
from tests.agent import fake_mpi

WORLD = layout.group_name(layout.WORLD_UID)


class Rank:
    """One process with its page; `seen`: what a reader of the page saw inside the last call."""

    def __init__(self) -> None:
        self.mpi = fake_mpi.make()
        self.part = memoryview(bytearray(page.PAGE_BYTES - page.MPI_AT_BYTES))
        self.lines = Lines(self.mpi, self.part, "openmpi")
        self.lines.words[layout.WORLD_SIZE_AT] = fake_mpi.WORLD_SIZE
        self.lines.communicators.add_world()
        self.less = entry.install(self.mpi, self.lines)
        self.seen = None
        self.mpi.during = self.look

    def look(self) -> None:
        self.seen = self.read()

    def read(self) -> layout.MpiState:
        state = layout.read_mpi(self.part, 1, 0)
        assert state is not None
        return state

    @property
    def call(self) -> layout.MpiCall:
        (call,) = self.seen.calls
        return call


def tick_at(now):
    """A tick of the agent at that time."""
    tick = Tick()
    tick.begin(now, 0, [])
    return tick


@pytest.fixture
def rank():
    return Rank()


@pytest.fixture(autouse=True)
def _no_part_fails():
    guard.off.clear()
    yield
    assert guard.off == {}


def test_a_collective_stands_on_the_page_with_its_number_while_it_runs_and_is_done_after(rank):
    rank.mpi.COMM_WORLD.Barrier()
    rank.mpi.COMM_WORLD.Barrier()

    assert rank.less is None
    assert (rank.call.name, rank.call.group, rank.call.seq) == ("Barrier", WORLD, 2)
    assert rank.seen.comms == (layout.MpiComm(WORLD, 2, 1, "Barrier"),)
    assert rank.read().calls == ()
    assert rank.read().comms == (layout.MpiComm(WORLD, 2, 2, "Barrier"),)


def test_a_wrapped_method_keeps_its_name_and_its_words(rank):
    assert rank.mpi.Comm.Barrier.__name__ == "Barrier"
    assert rank.mpi.Comm.Barrier.__doc__ == "Waits for all."


@pytest.mark.parametrize(
    ("args", "kwargs", "root"), [((0,), {}, 0), ((0, 2), {}, 2), ((0,), {"root": 1}, 1)]
)
def test_the_root_is_read_where_it_stands(rank, args, kwargs, root):
    rank.mpi.COMM_WORLD.bcast(*args, **kwargs)

    assert (rank.call.name, rank.call.peer) == ("bcast", root)


def test_the_length_of_a_reducing_buffer_is_known_and_that_of_another_is_not(rank):
    rank.mpi.COMM_WORLD.Allreduce("IN_PLACE", memoryview(bytearray(24)))
    assert rank.call.nbytes == 24

    rank.mpi.COMM_WORLD.Allreduce([bytearray(8), 1], [bytearray(8), 1])
    assert rank.call.nbytes is None


def test_peers_are_world_ranks_and_what_is_left_open_is_any(rank):
    two = rank.mpi.COMM_WORLD.Split((1, 2))
    two.send("x", 1, tag=5)
    assert (rank.call.peer, rank.call.tag, rank.call.group) == (2, 5, rank.read().comms[1].name)

    two.recv()
    assert (rank.call.name, rank.call.peer, rank.call.tag) == ("recv", None, None)


def test_what_goes_to_nobody_is_not_on_the_page(rank):
    rank.mpi.COMM_WORLD.send("x", rank.mpi.PROC_NULL)

    assert rank.seen.calls == ()


@pytest.mark.parametrize("bad", ["nobody", 99, None, 1.5])
def test_arguments_that_make_no_sense_are_left_to_mpi4py(rank, bad):
    rank.mpi.COMM_WORLD.send("x", bad)
    rank.mpi.COMM_WORLD.bcast("x", bad)

    assert rank.call.name == "bcast"


def test_both_halves_of_a_sendrecv_are_reported(rank):
    rank.mpi.COMM_WORLD.sendrecv("x", 2, 7, None, 0, 8)

    assert [(part.name, part.peer, part.tag) for part in rank.call.parts] == [
        ("Send", 2, 7),
        ("Recv", 0, 8),
    ]


def test_a_wait_says_whom_its_request_waits_for(rank):
    world = rank.mpi.COMM_WORLD
    one, two, three = world.irecv(source=0, tag=5), world.irecv(source=2, tag=6), world.Ibarrier()
    rank.mpi.Request.Waitany([one, two])
    assert [(part.name, part.peer, part.tag) for part in rank.call.parts] == [
        ("irecv", 0, 5),
        ("irecv", 2, 6),
    ]

    rank.mpi.Request.waitall([one, two])
    assert [part.peer for part in rank.call.parts] == [0, 2]

    three.wait()
    assert [(part.name, part.group, part.seq) for part in rank.call.parts] == [
        ("Ibarrier", WORLD, 1)
    ]
    assert rank.read().comms[0].enqueued == 1

    three.wait()
    assert rank.call.parts == ()


def test_of_more_requests_than_the_page_has_room_for_the_first_are_written(rank):
    requests = [rank.mpi.COMM_WORLD.irecv(source=0, tag=tag) for tag in range(40)]
    rank.mpi.Request.waitall(requests)

    assert len(rank.call.parts) == layout.PARTS_MAX


def test_a_communicator_has_one_name_on_all_its_members_and_another_than_its_siblings(rank):
    world = rank.mpi.COMM_WORLD
    world.Barrier()
    first, second = world.Split((1, 2)), world.Split((1, 2))
    names = [group.name for group in rank.lines.communicators.groups()]

    assert names == [WORLD, *(layout.group_name(uid_of(1, "Split", seq, 1)) for seq in (2, 3))]
    assert rank.lines.communicators.groups()[1].description == "Split #2 from rank 1"
    first.Barrier()
    assert rank.call.group == names[1]
    second.Split((1, 2)).Barrier()
    assert rank.call.group == layout.group_name(uid_of(uid_of(1, "Split", 3, 1), "Split", 1, 1))


def test_a_freed_communicator_leaves_its_place_to_the_next(rank):
    for _ in range(3 * layout.COMMS):
        made = rank.mpi.COMM_WORLD.Split((1, 2))
        made.Barrier()
        assert rank.call.group is not None
        made.Free()

    assert len(rank.lines.communicators.groups()) == 1


def test_a_file_is_a_group_of_those_that_have_opened_it_and_its_collective_calls_have_numbers(rank):
    """A rank that has nothing to write left out the collective write; the others stood in it."""
    rows = rank.mpi.COMM_WORLD.Split((1, 2))
    files = [rank.mpi.File.Open(rows, f"/scratch/{name}.h5") for name in ("a", "b")]
    assert rank.call.name == "File.Open"
    files[1].Write_all(b"")
    files[1].Write_all(b"")
    split = uid_of(1, "Split", 1, 1)
    names = [layout.group_name(uid_of(split, "File.Open", number, 1)) for number in (1, 2)]

    assert (rank.call.name, rank.call.group, rank.call.seq) == ("File.Write_all", names[1], 2)
    assert [(group.name, group.description) for group in rank.lines.communicators.groups()[2:]] == [
        (names[0], "file a.h5"),
        (names[1], "file b.h5"),
    ]
    files[1].Close()
    assert (rank.call.name, rank.call.group, rank.call.seq) == ("File.Close", names[1], 3)
    assert len(rank.lines.communicators.groups()) == 3


def test_the_calls_on_a_file_of_one_rank_or_of_an_unknown_communicator_have_no_group(rank):
    rank.mpi.File.Open(rank.mpi.COMM_SELF, "own.log").Write_all(b"")
    assert (rank.call.name, rank.call.group) == ("File.Write_all", None)

    rank.mpi.File.Open(rank.mpi.Intracomm((0, 1)), "theirs.log").Write_all(b"")
    assert (rank.call.name, rank.call.group) == ("File.Write_all", None)


def test_calls_of_more_communicators_than_there_are_places_are_still_shown(rank):
    kept = [rank.mpi.COMM_WORLD.Split((1, 2)) for _ in range(layout.COMMS + 5)]
    kept[-1].Barrier()

    assert (rank.call.name, rank.call.group) == ("Barrier", None)


def test_of_a_large_communicator_two_members_tell_who_is_in_it(rank, monkeypatch):
    monkeypatch.setattr(communicators, "MEMBERS_TOLD_BY_ALL", 2)
    rank.mpi.COMM_WORLD.Split((0, 2, 1))
    rank.mpi.COMM_WORLD.Split((0, 1, 2))

    assert [group.ranks for group in rank.lines.communicators.groups()[1:]] == [(), (0, 1, 2)]


def test_only_the_outermost_call_of_a_thread_is_noted(rank):
    def inner() -> None:
        rank.mpi.during = rank.look
        rank.mpi.COMM_WORLD.send("x", 0)

    rank.mpi.during = inner
    rank.mpi.COMM_WORLD.Barrier()

    assert [call.name for call in rank.seen.calls] == ["Barrier"]


def test_each_thread_has_its_line_and_those_without_one_call_all_the_same(rank):
    meet = threading.Barrier(layout.LINES + 3)
    rank.mpi.during = lambda: (meet.wait(), meet.wait())
    threads = [
        threading.Thread(target=rank.mpi.COMM_WORLD.send, args=("x", 0, tag))
        for tag in range(layout.LINES + 2)
    ]
    for thread in threads:
        thread.start()
    meet.wait()
    calls = rank.read().calls
    meet.wait()
    for thread in threads:
        thread.join()

    assert len(calls) == layout.LINES
    assert len({call.thread_id for call in calls}) == layout.LINES
    assert rank.read().calls == ()


def test_a_call_that_raises_leaves_the_page_and_is_remembered(rank):
    def refuse() -> None:
        raise OSError("message truncated")

    rank.mpi.during = refuse
    with pytest.raises(OSError, match="truncated"):
        rank.mpi.COMM_WORLD.Allreduce(None, memoryview(bytearray(16)))
    probe = MpiProbe(rank.lines, rank.part, LIMITS)
    probe.sample(tick_at(1))

    assert probe.state.calls == ()
    assert (probe.state.failed.name, probe.state.failed.seq) == ("Allreduce", 1)
    assert probe.state.failed.nbytes == 16


def test_while_something_stands_the_agent_tells_what_is_over_and_who_was_sent_what(rank):
    world, probe = rank.mpi.COMM_WORLD, MpiProbe(rank.lines, rank.part, LIMITS)
    world.bcast("x", root=2)
    world.send("x", 0, tag=3)
    world.send("x", 0, tag=7)
    probe.sample(tick_at(5_000_000_000))
    assert (probe.state.done, probe.state.traffic) == ((), ())

    rank.mpi.during = lambda: probe.sample(tick_at(9_000_000_000))
    world.recv(source=0, tag=9)
    rank.mpi.during = lambda: probe.sample(tick_at(12_000_000_000))
    world.irecv(source=0, tag=9).wait()
    probe.sample(tick_at(20_000_000_000))
    probe.sample(tick_at(29_000_000_000))

    assert probe.state.done == (layout.MpiPart("bcast", WORLD, 1, 2),)
    assert set(probe.state.traffic) == {
        layout.MpiTraffic(WORLD, 0, 3, 1, 0),
        layout.MpiTraffic(WORLD, 0, 7, 1, 0, is_last=True),
        layout.MpiTraffic(WORLD, 0, 9, 0, 2),
    }


def test_with_more_tags_than_are_counted_no_counts_are_reported(rank):
    """A tag for each step: the oldest would be compared with nothing."""
    world, probe = rank.mpi.COMM_WORLD, MpiProbe(rank.lines, rank.part, LIMITS)
    for step in range(TRAFFIC_KEYS_MAX + 1):
        world.send("x", 0, tag=step)
    rank.mpi.during = lambda: probe.sample(tick_at(9_000_000_000))
    world.recv(source=0, tag=9)
    probe.sample(tick_at(20_000_000_000))

    assert probe.state.traffic == ()


def test_a_receive_from_anybody_is_counted_for_no_peer(rank):
    world, probe = rank.mpi.COMM_WORLD, MpiProbe(rank.lines, rank.part, LIMITS)
    world.recv()
    world.send("x", 0, tag=7)
    probe.sample(tick_at(1))
    probe.sample(tick_at(9_000_000_000))

    assert probe.state.traffic == (
        layout.MpiTraffic(WORLD, None, None, 0, 1),
        layout.MpiTraffic(WORLD, 0, 7, 1, 0, True),
    )


def test_each_start_of_a_persistent_request_is_a_message(rank):
    """A halo exchange prepares its messages once and starts them in each step."""
    world = rank.mpi.COMM_WORLD
    send, receive = world.Send_init("x", 0, 7), world.Recv_init("x", 2, 8)
    for _ in range(3):
        rank.mpi.Prequest.Startall([send, receive])
    send.Start()

    comm = rank.lines.comms[world.handle]
    assert (comm.wild, comm.traffic) == (False, {(0, 7): [4, 0], (2, 8): [0, 3]})


def test_a_freed_persistent_request_counts_nothing_under_its_old_handle(rank):
    world = rank.mpi.COMM_WORLD
    send = world.Send_init("x", 0, 7)
    send.Free()
    send.Start()

    assert rank.lines.comms[world.handle].traffic == {}


def test_calls_with_a_spawned_world_are_shown_and_are_for_no_rank_of_this_world(rank):
    world = rank.mpi.COMM_SELF.Spawn("helper.py", 2)
    assert rank.call.name == "Spawn"

    world.send("x", 1, tag=5)
    assert (rank.call.name, rank.call.peer, rank.call.tag) == ("send", None, 5)
    assert layout.is_outside(rank.call.group)
    world.Barrier()
    assert (rank.call.name, layout.is_outside(rank.call.group)) == ("Barrier", True)
    (_, group) = rank.lines.communicators.groups()
    assert (group.description, group.ranks, group.foreign) == (
        "spawned world #1, 2 outside",
        (),
        "",
    )


def test_a_pattern_of_collectives_that_comes_round_is_an_iteration(rank):
    world, probe, now = rank.mpi.COMM_WORLD, MpiProbe(rank.lines, rank.part, LIMITS), 0
    for step in range(40):
        world.Barrier()
        world.bcast(1)
        world.bcast(1)
        if step % 10 == 0:
            snapshot = rank.mpi.File.Open(world, "snapshot")
            snapshot.Write_all(b"")
            snapshot.Close()
        now += 250_000_000
        probe.sample(tick_at(now))

    assert probe.rhythm.iteration == 40


def log_sum(world):
    world.Barrier()


def test_a_collective_more_is_told_with_the_call_that_should_have_come(rank):
    world, probe = rank.mpi.COMM_WORLD, MpiProbe(rank.lines, rank.part, LIMITS)
    for step in range(40):
        world.Barrier()
        if step == 20:
            log_sum(world)
    probe.sample(tick_at(1))

    (turn,) = [turn for turn in probe.turns() if turn.instead is not None]
    assert (turn.group, turn.number, turn.made.function) == (WORLD, 22, "log_sum")
    assert turn.instead.function == sys._getframe().f_code.co_name


def test_a_loop_without_a_pattern_counts_no_iterations(rank):
    world, probe = rank.mpi.COMM_WORLD, MpiProbe(rank.lines, rank.part, LIMITS)
    now, lengths = 0, random.Random(3)
    for _ in range(40):
        for _ in range(lengths.randrange(7)):
            world.Barrier()
        world.bcast(1)
        now += 250_000_000
        probe.sample(tick_at(now))

    assert probe.rhythm.iteration is None


def test_where_a_method_table_cannot_be_replaced_the_world_becomes_a_subclass(monkeypatch):
    monkeypatch.setattr(entry, "replace_methods", lambda *_: None)
    rank = Rank()
    assert "only COMM_WORLD and its Dups" in rank.less
    assert isinstance(rank.mpi.COMM_WORLD, rank.mpi.Intracomm)
    assert not rank.lines.counts_starts


class Buffer:
    """An array, as it says."""

    __module__, dtype, nbytes = "numpy", "float32", 64


def test_the_agent_never_holds_a_buffer_while_the_program_can_run():
    """The call may return between any two bytecodes: the agent would run a buffer's destructor."""
    rank, references, found = Rank(), set(), []
    buffers = (Buffer(), Buffer())

    def look():
        given = rank.lines.by_thread[threading.get_ident()].given
        call, probe = rank.read().calls[0], MpiProbe(rank.lines, rank.part, LIMITS)

        def at_each_bytecode(frame, _event, _argument):
            frame.f_trace_opcodes = True
            references.add((sys.getrefcount(given), sys.getrefcount(buffers[0])))
            return at_each_bytecode

        sys.settrace(at_each_bytecode)
        try:
            found.append(probe._describe(call))
        finally:
            sys.settrace(None)

    rank.mpi.during = look
    rank.mpi.COMM_WORLD.Allreduce(*buffers)

    assert [one.dtype for one in found] == ["float32"]
    assert len(references) == 1
