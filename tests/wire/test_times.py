"""Times in records, moved from one clock to another."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ddtop.wire.mpi import MpiCall, MpiState
from ddtop.wire.records import (
    Collective,
    GroupProgress,
    Hello,
    LastException,
    OpenCall,
    Place,
    ProcessState,
    RankState,
    Stacks,
)
from ddtop.wire.times import shift
from tests.wire.strategies import RECORDS, struct_of

STATE = RankState(
    "running",
    groups=(GroupProgress("0", 5, 4, pending_since_unix_ns=100), GroupProgress("1", 5)),
    open_collectives=(Collective("0", "all_reduce", 5, 5, created_unix_ns=101),),
    open_calls=(OpenCall("recv", 102),),
    place=Place("f", "f.py", 1, since_unix_ns=103),
    exception=LastException("E", "e", 104, Place("g", "g.py", 2)),
    progress_unix_ns=105,
    gc_total_ns=106,
    mpi=MpiState(107, (MpiCall("Recv", 108, 1),)),
)


def test_every_time_in_a_record_moves_however_deep_it_lies_and_nothing_else_does():
    found = shift(STATE, 1000)

    assert [one.pending_since_unix_ns for one in found.groups] == [1100, None]
    assert found.open_collectives[0].created_unix_ns == 1101
    assert found.open_calls[0].since_unix_ns == 1102
    assert (found.place.since_unix_ns, found.place.line) == (1103, 1)
    assert (found.exception.unix_ns, found.exception.place.since_unix_ns) == (1104, None)
    assert (found.progress_unix_ns, found.gc_total_ns) == (1105, 106)
    assert (found.mpi.unix_ns, found.mpi.calls[0].since_unix_ns) == (1107, 1108)


def test_a_time_that_is_not_set_is_not_set_elsewhere():
    hello = Hello("j", "r", 0, 0, 0, 1, "h", 1, 1)

    assert shift(hello, 1000) is hello or shift(hello, 1000) == hello
    assert shift(ProcessState(0, 1, "S"), 5) == ProcessState(0, 1, "S")


def test_what_has_no_time_is_the_same_object():
    stacks = Stacks("r", 0, 1, 50)

    assert shift(stacks, 0) is stacks
    assert shift(stacks, 7).taken_unix_ns == 57


@settings(max_examples=20)
@given(st.sampled_from(RECORDS).flatmap(struct_of), st.integers(-(2**60), 2**60))
def test_moved_there_and_back_a_record_is_what_it_was(record, by_ns):
    there = shift(record, by_ns)
    back = shift(there, -by_ns)

    # A time that happens to come out as 0 is taken for one that is not set.
    assert back == record or "unix_ns=0" in repr(there)
