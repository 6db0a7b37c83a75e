"""Where a rank's time goes, on its page: letters and numbers, so that nothing needs a colour."""

from ddtop.model.facts import Late, Pressure, RankFacts, ReportedFacts, State
from ddtop.present.rank import time_lines
from ddtop.present.text import Page
from ddtop.wire.records import Spot
from tests.ui import builders
from tests.ui.changed import replace

RANK = RankFacts(
    1,
    State.STRAGGLER,
    reported=ReportedFacts(activity_ratios=(0.25, 0.5, 0.125, 0.0, 0.125, 0.0, 0.0)),
)


def lines(rank, width=60):
    page = Page(width)
    time_lines(page, builders.healthy(), rank)
    return ["".join(text for text, _ in line).rstrip() for line in page.lines]


def test_phases_are_a_bar_of_letters_with_their_numbers_below():
    assert lines(RANK, 58) == [
        "where its time goes",
        "  activities    " + "L" * 10 + "F" * 20 + "B" * 5 + "C" * 5,
        "                L loader 25%, F forward 50%, B backward",
        "                12%, C collective 12%",
    ]


def test_a_straggler_says_who_waits_how_long_and_where_it_is():
    late = Late("0", (1,), (0, 2, 3), 199.0, 222.0, 64, 0.98, 0)
    spots = (
        Spot("Augment.<locals>.rotate", "/home/ada/aug.py", 88, 62),
        Spot("step", "/home/ada/t.py", 9, 1),
    )
    shown = lines(
        replace(
            RANK,
            late=late,
            reported={"spots": spots, "spots_samples": 100},
            process={"pressure": Pressure(20.0, 0.12)},
        ),
        90,
    )

    assert "  waited for    199.0 ms of each 222.0 ms, by ranks 0,2,3" in shown
    assert "  no CPU        12% of the time ready to run, but waiting for one" in shown
    assert "  last 30 s     62% rotate aug.py:88" in shown


def test_of_a_rank_that_was_not_sampled_there_is_no_section():
    assert lines(RankFacts(0, State.STARTING)) == []


def test_nothing_is_wider_than_the_page():
    assert max(len(line) for line in lines(RANK, 24)) <= 24
