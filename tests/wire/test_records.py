"""The records themselves: missing is not zero, and a record may only grow at its end."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtop.wire import records
from tests.wire.strategies import RECORDS, simplest


@pytest.mark.parametrize("cls", RECORDS)
def test_a_tail_that_a_newer_minor_version_appended_is_ignored(cls):
    """A relay of 0.2 sends a field more; the viewer of 0.1 beside it must go on showing the job."""
    record = simplest(cls)
    words = msgspec.msgpack.decode(msgspec.msgpack.encode(record))
    longer = msgspec.msgpack.encode([*words, "a field of next year", {"more": [1, 2.5, None]}])

    assert msgspec.msgpack.decode(longer, type=records.AnyRecord) == record


@pytest.mark.parametrize("cls", RECORDS)
def test_a_shorter_record_of_an_older_minor_version_gets_the_defaults(cls):
    record = simplest(cls)
    words = msgspec.msgpack.decode(msgspec.msgpack.encode(record))
    required = sum(1 for field in msgspec.structs.fields(cls) if field.required)
    shorter = msgspec.msgpack.encode(words[: 1 + required])

    assert msgspec.msgpack.decode(shorter, type=records.AnyRecord) == record


@pytest.mark.parametrize(
    "cls", [*RECORDS, records.GroupProgress, records.Loader, records.ProcessState, records.Gpu]
)
def test_what_was_not_measured_is_none_and_comes_back_as_none(cls):
    """A rank without a DataLoader showed "queue 0" and was called input-bound.

    None had become 0 on its way.
    """
    record = simplest(cls)
    optional = [
        field.name
        for field in msgspec.structs.fields(cls)
        if not field.required and field.default is None
    ]
    back = msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=cls)

    assert [getattr(back, name) for name in optional] == [None] * len(optional)


@given(st.integers(), st.integers())
def test_records_are_frozen(line, other):
    place = records.Place("step", "train.py", line)

    with pytest.raises(AttributeError):
        place.line = other


def test_only_additions_at_the_end_keep_the_schema():
    """The first fields of each record as version 1 has them.

    A reordering is a new major version, not a tidy-up.
    """
    first = {
        cls.__name__: [field.name for field in msgspec.structs.fields(cls)][:4] for cls in RECORDS
    }

    assert first == {
        "Hello": ["job", "run", "attempt", "rank"],
        "RankState": ["phase", "activity", "iteration", "iteration_source"],
        "Groups": ["groups", "turns", "made"],
        "HostState": ["host", "cores", "cpu_ratio", "memory_total_bytes"],
        "Exit": ["rank", "pid", "code", "signal"],
        "Stacks": ["request", "of_rank", "pid", "taken_unix_ns"],
        "Command": ["name", "history_s", "instance", "arguments"],
        "Reply": ["name", "ok", "text", "count"],
        "Arrivals": ["request", "groups", "iteration"],
        "CommStatus": ["answer"],
        "Order": ["what", "ranks", "by", "text"],
    }
