"""At which lines the main thread was, counted over half a minute, and which other thread computes
meanwhile.
"""

import threading

import pytest

from ddtop.agent.probes import main_thread
from ddtop.agent.probes.main_thread import KEPT, TOLD, HotLines, Takers
from ddtop.agent.stacks.frames import FrameReader, ThreadLook
from ddtop.wire.records import by_function


def seen(function="step", line=10, qualname=None, waits_on=None, file="/home/ada/train.py"):
    look = ThreadLook()
    look.function = function
    look.file = file
    look.line = line
    look.qualname = qualname
    look.waits_on = waits_on
    return look


def test_lines_are_reported_with_the_qualified_name_and_functions_are_their_sum():
    spots = HotLines()
    for line in (88, 88, 90, 88):
        spots.add(seen("rotate", line, "Augment.rotate"))
    spots.add(seen("step", 12))
    told = spots.most_seen()

    assert (told[0].function, told[0].line, told[0].samples) == ("Augment.rotate", 88, 3)
    assert [(spot.function, spot.line, spot.samples) for spot in by_function(told)] == [
        ("Augment.rotate", 88, 4),
        ("step", 12, 1),
    ]
    assert spots.total == 5


def test_looks_without_own_code_count_in_the_total_only():
    spots = HotLines()
    spots.add(None)
    spots.add(ThreadLook())
    spots.add(seen())

    assert (spots.total, [spot.samples for spot in spots.most_seen()]) == (3, [1])


def test_what_is_older_than_half_a_minute_is_forgotten():
    spots = HotLines()
    for _ in range(KEPT):
        spots.add(seen("old"))
    for _ in range(KEPT):
        spots.add(seen("new"))

    assert [(spot.function, spot.samples) for spot in spots.most_seen()] == [("new", KEPT)]


def test_the_table_is_bounded_however_many_lines_a_program_has():
    spots = HotLines()
    for number in range(10 * KEPT):
        spots.add(seen(f"f{number}", number))

    assert (spots.total, len(spots.most_seen())) == (KEPT, TOLD)


def packs(end):
    end.wait()


@pytest.mark.parametrize(("ran_ms", "told"), [(25, "packs"), (15, None)])
def test_a_thread_that_computes_at_late_samples_is_told_by_its_function(ran_ms, told, monkeypatch):
    """Since the look before, a tenth of a second ago, it has run for so long."""
    end, takers = threading.Event(), Takers(FrameReader())
    thread = threading.Thread(target=packs, args=(end,))
    thread.start()
    try:
        for look in range(4):
            ran = look * ran_ms * 1_000_000, 0
            own = f"self/task/{thread.native_id}"
            monkeypatch.setattr(
                main_thread,
                "scheduled_ns",
                lambda task, own=own, ran=ran: ran if task == own else (0, 0),
            )
            takers.look(look * 100_000_000, 0)
    finally:
        end.set()
        thread.join()

    assert (takers.most_seen.function if takers.most_seen is not None else None) == told
