"""The MPI part of the state page, read while another process writes it, or from bytes that nobody
wrote.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from ddtop.wire import mpi as layout
from ddtop.wire.names import (
    MPI_CALLS,
    MPI_CODES,
    MPI_COLLECTIVES,
    MPI_RECEIVES,
    MPI_SENDS,
    MPI_WAITS,
    WAITING_CALLS,
)


def part(**words):
    """A part of zeros with some words set: `w12=3`."""
    data = bytearray(layout.WORDS * 8)
    view = memoryview(data).cast("q")
    view[layout.WORLD_SIZE_AT] = 4
    for name, value in words.items():
        view[int(name[1:])] = value
    return data


def line(index, *head):
    at = layout.LINES_AT + index * layout.LINE_WORDS
    return {f"w{at + place}": value for place, value in enumerate(head)}


def test_no_world_is_no_state():
    assert layout.read_mpi(bytes(layout.WORDS * 8), 5, 0) is None


def test_a_line_between_two_equal_serial_numbers_is_a_call():
    data = part(**line(2, 7, MPI_CODES["recv"], -1, 0, 3, layout.ANY, -1, 1000, 7, 99))
    state = layout.read_mpi(data, 5, 10)

    assert state.calls == (layout.MpiCall("recv", 1010, 99, peer=3, serial=7),)


def test_a_line_that_is_being_written_is_not_read():
    data = part(**line(0, 8, MPI_CODES["recv"], -1, 0, 3, 0, -1, 1000, 7))

    assert layout.read_mpi(data, 5, 0).calls == ()


def test_the_names_have_their_codes_for_ever():
    """A code on a page of an older agent keeps its meaning: names are only appended."""
    known = {
        1: "Barrier",
        13: "Allreduce",
        18: "barrier",
        28: "Ibarrier",
        45: "Dup",
        59: "Send",
        77: "Recv",
        89: "Wait",
    }

    assert {code: MPI_CALLS[code] for code in known} == known
    assert len(MPI_CODES) == len(MPI_CALLS) - 1


def test_every_name_is_of_one_sort():
    sorts = (MPI_COLLECTIVES, MPI_SENDS, MPI_RECEIVES, MPI_WAITS)
    assert all(sum(name in sort for sort in sorts) <= 1 for name in MPI_CALLS)
    assert WAITING_CALLS >= MPI_SENDS | MPI_RECEIVES | MPI_WAITS
    assert "Finalize" not in WAITING_CALLS


@settings(max_examples=200)
@given(st.binary(max_size=400), st.integers(0, layout.WORDS * 8 - 400))
def test_bytes_that_nobody_wrote_are_read_without_an_error(junk, at):
    data = part()
    data[at : at + len(junk)] = junk

    layout.read_mpi(data, 5, 0)


@settings(max_examples=200)
@given(
    st.dictionaries(
        st.integers(0, layout.WORDS - 1), st.integers(-(2**63), 2**63 - 1), max_size=40
    ),
    st.integers(0, layout.LINES - 1),
    st.sampled_from(MPI_CALLS[1:]),
)
def test_a_line_full_of_anything_is_read_without_an_error(words, index, name):
    data = part(**{f"w{place}": value for place, value in words.items()})
    view = memoryview(data).cast("q")
    at = layout.LINES_AT + index * layout.LINE_WORDS
    view[layout.WORLD_SIZE_AT] = 4
    view[at + layout.SERIAL] = view[at + layout.SERIAL_AGAIN] = 9
    view[at + layout.CALL] = MPI_CODES[name]

    state = layout.read_mpi(data, 5, 0)

    assert name in [call.name for call in state.calls]
    assert all(len(call.parts) <= layout.PARTS_MAX for call in state.calls)
