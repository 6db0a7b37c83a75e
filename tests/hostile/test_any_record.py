"""Well-formed records without sense: the model, the rules and every view accept them.

Longer by hand: DDTOP_TEST_FUZZ=20000.
"""

from __future__ import annotations

import os

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddtop.model.call_order import compare
from ddtop.model.job import Job
from ddtop.policy import POLICY
from ddtop.wire.records import (
    CallSite,
    Group,
    Hello,
    ProcessState,
    RankState,
    Replica,
    Turn,
)
from tests.hostile.any_record import ANY, VALID, bears, sealed
from tests.wire.strategies import RECORDS

EXAMPLES = int(os.environ.get("DDTOP_TEST_FUZZ", "12"))
HOSTILE = st.sampled_from(
    [
        "a\x1b[2Jb",
        "\x00",
        "\u202e",
        "x" * 3000,
        "\ud800",
        "ノード",
        "\r\n",
        "{}",
        "%s",
        "[bold]x[/]",
    ]
)
BOUNDED = settings(max_examples=EXAMPLES, suppress_health_check=[*HealthCheck], deadline=None)


@BOUNDED
@given(st.data())
def test_any_records_among_those_of_a_job_are_accepted(data):
    found = list(VALID)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(found) - 1))
        near = found[at][0]
        record = data.draw(ANY[data.draw(st.sampled_from(RECORDS))])
        times = st.just(near.unix_ns) | st.integers(0, 2**63 - 1)
        made = sealed(record, data.draw(st.integers(0, 4)), near.pid, near.sender, data.draw(times))
        if made is not None:
            found.insert(at, made)
    bears(found)


@BOUNDED
@given(st.data())
def test_records_of_a_job_with_other_values_in_their_fields_are_accepted(data):
    """A record that is half right is worse than one without sense, because it gets further."""
    found = list(VALID)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(found) - 1))
        envelope, record = found[at]
        other = data.draw(ANY[type(record)])
        names = data.draw(
            st.lists(st.sampled_from(record.__struct_fields__), min_size=1, max_size=4)
        )
        changed = msgspec.structs.replace(record, **{name: getattr(other, name) for name in names})
        made = sealed(changed, envelope.rank, envelope.pid, envelope.sender, envelope.unix_ns)
        if made is not None:
            found[at] = made
    bears(found)


@BOUNDED
@given(st.data())
def test_hostile_names_in_a_job_are_never_drawn_unescaped(data):
    found = []
    for envelope, record in VALID:
        made = sealed(
            spoilt(record, data), envelope.rank, envelope.pid, envelope.sender, envelope.unix_ns
        )
        found.append(made or (envelope, record))
    bears(found)


def spoilt(record, data):
    """The record with some of its texts replaced."""
    if not isinstance(record, (Hello, ProcessState)) and data.draw(st.integers(0, 20)):
        return record
    texts = {
        field.name: data.draw(HOSTILE)
        for field in msgspec.structs.fields(type(record))
        if isinstance(getattr(record, field.name), str) and field.name not in ("job", "run")
    }
    return msgspec.structs.replace(record, **texts) if texts else record


class Counted(str):
    """A text that counts how often it is hashed or compared."""

    times = 0

    def __hash__(self) -> int:
        Counted.times += 1
        return str.__hash__(self)

    def __eq__(self, other: object) -> bool:
        Counted.times += 1
        return str.__eq__(self, other)


@pytest.mark.parametrize(("ranks", "turns"), [(4, 2000), (200, 32)])
def test_ranks_that_all_make_other_calls_are_compared_call_by_call(ranks, turns):
    """With 1,000 ranks a look took minutes: each call was compared with all those of each rank."""
    every = {
        rank: tuple(
            Turn(
                "0",
                number * ranks + rank,
                CallSite("all_reduce", Counted(f"{rank}.py"), number),
                CallSite("all_reduce", "other.py", number),
            )
            for number in range(turns)
        )
        for rank in range(ranks)
    }
    Counted.times = 0
    group = Group("0", "default_pg", tuple(range(ranks)), "gloo")

    assert compare(every, frozenset(["0"]), (group,)) == ()
    assert Counted.times <= 8 * ranks * turns


def test_invented_models_are_compared_by_their_key():
    """A record of a mebibyte holds a hundred thousand of them."""
    job, models, most = Job("train", POLICY), 500, 0
    keys = [(Counted("0"), number, ("weight",)) for number in range(models)]
    invented = tuple(Replica(key, ((1, (0.5,)),)) for key in keys)
    for envelope, record in VALID:
        if isinstance(record, RankState):
            record = msgspec.structs.replace(record, replicas=invented)
        Counted.times = 0
        job.apply(envelope, record)
        most = max(most, Counted.times)

    assert models <= most <= 20 * models
