"""The time line of a job as the dashboard keeps it: rows, stories, and the time before the viewer
joined.
"""

import msgspec

from ddtop.diagnosis.finding import Said, Verdict
from ddtop.follow.look import Look
from ddtop.model.facts import State
from ddtop.policy import POLICY
from ddtop.present.events import CONTACT, END, FINDING, JOIN, STACKS, EventLog, rows_of
from ddtop.present.findings import event_row, events_table, finding_lines, story_lines
from ddtop.present.text import line_width, plain
from ddtop.say.said import lasting, marked, share, without
from ddtop.ui.session import Session
from ddtop.ui.stack_request import recall
from ddtop.wire.records import Exit
from tests.ui import builders, dumps
from tests.ui.builders import JOB, NOW, SECOND, FakeSource, live
from tests.ui.changed import replace


def at(snapshot, seconds):
    return replace(snapshot, time_unix_ns=NOW + seconds * SECOND)


def watched(*looks):
    timeline = EventLog(POLICY)
    for snapshot, verdict in looks:
        timeline.take(Look(snapshot, verdict))
    return timeline


def well(seconds):
    snapshot = at(builders.healthy(), seconds)
    return snapshot, builders.calm(snapshot)


def stuck(seconds, summary=None):
    """`summary`: with the marks of `ddtop.say.said`."""
    snapshot, verdict = builders.hang()
    finding = verdict.findings[0]
    if summary is not None:
        finding = replace(finding, summary=without(summary), said=Said(summary))
    return at(snapshot, seconds), Verdict("critical", (finding,), "")


def lines(timeline, now=NOW, width=100):
    table = events_table(width)
    return [plain(event_row(row, now, table)) for row in rows_of(timeline.events)]


def test_a_finding_has_a_row_when_it_began_and_one_when_it_was_over():
    timeline = watched(stuck(0), stuck(10), well(20))

    assert lines(timeline) == [
        "22:10:20    joined                         ranks 0-7 of 8 joined",
        (
            "22:12:49  ✖ loader-stuck              51s  rank 5 has been in the DataLoader"
            " (data.py:40 load_image…"
        ),
        "22:13:40    loader-stuck              51s  over of rank 5",
    ]


def test_a_sentence_in_which_only_a_duration_grew_is_the_same_one():
    timeline = watched(
        stuck(0, f"rank 5 sleeps{lasting(31)}"),
        stuck(9, f"rank 5 sleeps{lasting(40)}"),
        stuck(60, "rank 5 is gone"),
    )
    (entry,) = [entry for entry in timeline.events if entry.what == FINDING]

    words = [without(words) for _, words in entry.sentences]
    assert words == ["rank 5 sleeps for 31 s", "rank 5 is gone"]


def test_a_sentence_in_which_only_a_measured_number_changed_is_the_same_one():
    texts = [
        f"rank {rank} uses {share(ratio)} of {marked(time)}"
        for rank, ratio, time in ((5, 0.6, "310 ms"), (5, 0.55, "290.5 ms"), (6, 0.55, "1 ms"))
    ]
    timeline = watched(*(stuck(at, text) for at, text in enumerate(texts)))
    (entry,) = [entry for entry in timeline.events if entry.what == FINDING]

    assert [words for _, words in entry.sentences] == [texts[0], texts[2]]


def test_a_sentence_of_a_plugin_counts_when_its_ranks_change():
    """Nobody knows which of its numbers were measured."""
    _, verdict = stuck(0)
    theirs = replace(verdict.findings[0], said=None)
    first, later, other = (replace(theirs, summary=text) for text in "abc")
    found = (first, later, replace(other, victims=(0, 1)))
    looks = ((at(builders.healthy(), second), one) for second, one in enumerate(found))
    timeline = watched(*((moment, Verdict("critical", (one,), "")) for moment, one in looks))
    (entry,) = [entry for entry in timeline.events if entry.what == FINDING]

    assert [words for _, words in entry.sentences] == ["a", "c"]


def test_what_was_out_of_sight_while_the_relay_was_replaced_is_one_finding():
    snapshot, verdict = stuck(20)
    finding = verdict.findings[0]
    again = replace(finding, since_unix_ns=finding.since_unix_ns + 300_000_000)
    timeline = watched(stuck(0), well(10), (snapshot, Verdict("critical", (again,), "")))

    assert [entry.over_unix_ns for entry in timeline.events if entry.what == FINDING] == [None]


def test_the_story_of_a_finding_tells_how_it_went_and_what_it_means():
    timeline = watched(stuck(0), stuck(5, "rank 5 is gone"), well(20))
    snapshot, _ = well(30)
    entry = next(entry for entry in timeline.events if entry.what == FINDING)
    text = [plain(line) for line in story_lines(snapshot, entry, 90)]
    went = text.index("how it went")

    assert text[0] == "✖ rank 5 is gone"
    assert "  over          22:13:40, it lasted for 51 s" in text
    assert text[went + 1].startswith("  22:13:20  rank 5 has been in the DataLoader")
    assert "  22:13:25  rank 5 is gone" in text
    assert "  22:13:40  over" in text
    assert "what it means" in text


def coming(seconds, ranks, started_s=0.0):
    """A look with these ranks. Their processes began `started_s` after the first look."""
    snapshot = at(builders.healthy(), seconds)
    began = NOW + int(started_s * SECOND)
    there = [
        replace(
            r,
            hello=(
                msgspec.structs.replace(r.hello, started_unix_ns=began) if r.rank in ranks else None
            ),
        )
        for r in snapshot.ranks
    ]
    snapshot = replace(snapshot, ranks=tuple(there), reporting=len(ranks))
    return snapshot, builders.calm(snapshot)


def restarted(look):
    snapshot, verdict = look
    return replace(snapshot, attempt=snapshot.attempt + 1), verdict


def joined(timeline):
    return [
        (entry.began_unix_ns - NOW, entry.sentence)
        for entry in timeline.events
        if entry.what == JOIN
    ]


def test_ranks_whose_first_words_come_one_after_the_other_came_together():
    assert joined(watched(coming(0, {0, 3}), coming(2, {0, 1, 3}, 1), coming(4, range(8), 1))) == [
        (0, "ranks 0-7 of 8 joined")
    ]


def test_a_rank_that_comes_much_later_has_its_own_entry():
    looks = coming(0, range(7)), coming(60, range(8), 50)

    assert joined(watched(*looks)) == [
        (0, "ranks 0-6 of 8 joined"),
        (50 * SECOND, "rank 7 of 8 joined"),
    ]


def test_that_a_rank_is_heard_late_does_not_mean_that_it_came_late():
    assert joined(watched(coming(0, {0, 1}, -900), coming(60, range(8), -900))) == [
        (-900 * SECOND, "ranks 0-7 of 8 joined")
    ]


def test_ranks_of_which_some_are_in_the_time_before_joined_once():
    """The recording begins with the first rank; the first look has all of them."""
    timeline = watched(coming(2, range(8), 1))
    timeline.absorb(watched(coming(1, {3})))

    assert joined(timeline) == [(0, "ranks 0-7 of 8 joined")]


def test_ranks_that_joined_much_later_than_those_of_the_time_before_keep_their_time():
    timeline = watched(coming(100, range(8), 90))
    timeline.absorb(watched(coming(1, {3})))

    assert joined(timeline) == [
        (0, "rank 3 of 8 joined"),
        (90 * SECOND, "ranks 0-2,4-7 of 8 joined"),
    ]


def test_ranks_of_the_attempt_before_have_their_own_entry():
    """A restart within some seconds."""
    timeline = watched(restarted(coming(3, range(8), 2)))
    timeline.absorb(watched(coming(1, {3})))

    assert joined(timeline) == [(0, "rank 3 of 8 joined"), (2 * SECOND, "ranks 0-7 of 8 joined")]


def test_who_came_is_reported_once_when_the_time_before_is_read():
    timeline = watched(coming(100, range(8)))
    timeline.absorb(watched(coming(0, {0, 1}), coming(50, range(8), 50)))

    assert joined(timeline) == [
        (0, "ranks 0,1 of 8 joined"),
        (50 * SECOND, "ranks 2-7 of 8 joined"),
    ]


def test_who_asks_why_when_all_is_well_again_reads_what_was():
    snapshot, verdict = well(20)
    timeline = watched(stuck(0), (snapshot, verdict))
    text = [plain(line) for line in finding_lines(snapshot, verdict, 90, timeline=timeline)]

    assert text[text.index("what was wrong before") + 1].startswith(
        "  22:12:49  rank 5 has been in the DataLoader"
    )
    assert "what was wrong before" not in [
        plain(line) for line in finding_lines(snapshot, verdict, 90)
    ]


def test_thousands_of_ranks_that_end_alike_are_one_entry():
    snapshot = builders.healthy(512)
    gone = tuple(
        replace(
            r,
            state=State.KILLED,
            process={"exit": Exit(r.rank, 1, None, 15, False, 0, "pidfd"), "exit_unix_ns": NOW},
        )
        for r in snapshot.ranks
    )
    timeline = watched(
        (snapshot, builders.calm(snapshot)),
        (replace(at(snapshot, 1), ranks=gone), builders.calm(snapshot)),
    )

    assert [entry.sentence for entry in timeline.events if entry.what == END] == [
        "ranks 0-511 ended: SIGTERM"
    ]


def test_a_dump_is_one_entry_however_many_looks_its_answers_take():
    snapshot, verdict = builders.hang()
    timeline = watched(
        (dumps.with_stacks(snapshot, (0, 1), "r1"), verdict),
        (at(dumps.with_stacks(snapshot, None, "r1"), 1), verdict),
    )

    assert [entry.ranks for entry in timeline.events if entry.what == STACKS] == [tuple(range(8))]


def test_it_is_bounded_and_counts_what_went():
    timeline = EventLog(POLICY, most=3)
    for second in range(20):
        snapshot, verdict = (stuck if second % 2 else well)(second)
        timeline.take(Look(snapshot, verdict, None if second % 3 else "not heard"))

    assert len([event for event in timeline.events if event.what != JOIN]) == 3
    assert timeline.forgotten > 0


def test_contact_that_was_lost_and_came_again_is_reported_once():
    timeline = EventLog(POLICY)
    for second, lost in enumerate(("relay not heard", "relay not heard", None, None)):
        timeline.take(Look(*well(second), lost))

    assert [entry.sentence for entry in timeline.events if entry.what == CONTACT] == [
        "relay not heard",
        "the relay reports after 2 s of silence",
    ]


def test_what_stood_before_this_viewer_looked_and_stands_now_is_one_entry():
    earlier = watched(well(-90), stuck(-20, "rank 5 sleeps"), stuck(-10))
    timeline = watched(stuck(0))
    timeline.absorb(earlier)
    found = [entry for entry in timeline.events if entry.what == FINDING]

    assert len(found) == 1
    assert found[0].sentences[0][1] == "rank 5 sleeps"
    assert found[0].over_unix_ns is None
    assert [entry.what for entry in timeline.events].count(JOIN) == 1


def test_what_had_cleared_before_this_viewer_looked_is_there_too():
    timeline = watched(well(0))
    timeline.absorb(watched(stuck(-60), well(-30)))
    (entry,) = [entry for entry in timeline.events if entry.what == FINDING]

    assert entry.over_unix_ns == NOW - 30 * SECOND


async def test_the_past_is_recalled_once_and_only_where_something_is_kept():
    steps = []

    def looks(step_ns):
        steps.append(step_ns)
        yield from (stuck(-60), well(-30), stuck(30))

    source = live(*well(0))
    session = Session(source, JOB, clock=lambda: NOW)
    assert not await recall(session)
    source.shown = replace(source.shown, span=(NOW - 600 * SECOND, NOW), recall=looks)
    session.refresh()

    assert await recall(session)
    assert not await recall(session)
    assert steps == [600 * SECOND // 240]
    assert [entry.over_unix_ns for entry in session.timeline.events if entry.what == FINDING] == [
        NOW - 30 * SECOND
    ]


async def test_of_a_recording_the_whole_time_line_is_what_was_recalled():
    look = Look(
        *stuck(0),
        travelled=True,
        recording=True,
        span=(NOW - 9 * SECOND, NOW),
        recall=lambda _: iter((stuck(-5),)),
    )
    session = Session(FakeSource(look), JOB, clock=lambda: NOW)
    await recall(session)

    assert session.timeline.of(look.verdict.findings[0]) is not None


def test_no_row_is_wider_than_its_table_and_what_comes_later_is_dim():
    timeline = watched(stuck(0), well(20))
    rows = rows_of(timeline.events)
    for width in range(60, 200, 9):
        assert all(line_width(event_row(row, NOW, events_table(width))) <= width for row in rows)
    assert {style for _, style in event_row(rows[-1], NOW, events_table(90))} <= {"dim", ""}
