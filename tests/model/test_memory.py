"""What the model keeps of one rank, when the offset of its host's clock is corrected."""

from dataclasses import fields

import msgspec

from ddtop.model.memory import RankMemory
from ddtop.model.progress import Owing
from tests.jobs import SECOND, FakeJob


def stopped_rank():
    """A rank with a report of every kind and with every time set."""
    job = FakeJob(2).trains(3)
    job.ranks[1].is_stopped()
    job.passes(2)
    job.ranks[1].ends(signal=9)
    memory = job.model().ranks[1]
    memory.stalled_since_unix_ns = memory.process_unix_ns
    memory.owing = Owing((1, 2, 3), False, 4 * SECOND, 5 * SECOND)
    return memory


def times_of(memory):
    """Each time in the memory by its name, including those in its frozen records."""
    own = {one.name: getattr(memory, one.name) for one in fields(RankMemory)}
    found = {name: value for name, value in own.items() if name.endswith("_unix_ns")}
    for name, record in own.items():
        if isinstance(record, msgspec.Struct):
            for field in record.__struct_fields__:
                value = getattr(record, field)
                if field.endswith("_unix_ns") and value:
                    found[f"{name}.{field}"] = value
    return found


def test_all_times_of_a_rank_move_with_the_clock_of_its_host():
    memory = stopped_rank()
    before = times_of(memory)

    memory.move(SECOND)

    assert all(before.values())
    assert times_of(memory) == {name: at + SECOND for name, at in before.items()}
    assert memory.owing == Owing((1, 2, 3), False, 5 * SECOND, 6 * SECOND)


def test_a_time_that_was_not_reported_stays_unknown():
    memory = FakeJob(1).model().ranks[0]

    memory.move(SECOND)

    assert (memory.exit_unix_ns, memory.stalled_since_unix_ns, memory.owing) == (0, None, None)
