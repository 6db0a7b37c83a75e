"""Merged stacks as `ddtop stacks` prints them, as JSON, and which stacks belong together."""

import json

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtop.follow.source_lines import Excerpt
from ddtop.model.facts import RankFacts, State
from ddtop.model.stacks import merge
from ddtop.policy import POLICY
from ddtop.present.documents import stacks_json
from ddtop.present.stacks import (
    Around,
    Shape,
    answers,
    around,
    at_fault,
    doing_text,
    head_line,
    last_request,
    merged_of,
    stacks_lines,
    stacks_text,
)
from ddtop.present.text import ASCII, UNICODE, line_width, plain
from ddtop.wire.records import Exit, StackFrame, Stacks, ThreadStack
from tests.ui import builders, dumps
from tests.ui.builders import NOW, SECOND
from tests.ui.changed import replace
from tests.ui.dumps import LOAD, MAIN, STEP

SOURCE = Excerpt(
    38, ("    with open(path) as tar:", "", "        return decode(tar)", "    # next")
)
HANG, VERDICT = builders.hang()


def read(file, line, started_unix_ns):
    return SOURCE if file == LOAD.file else None


def text_of(snapshot, width=80, shape=Shape(), glyphs=UNICODE):  # noqa: B008
    merged = merged_of(answers(snapshot, "r1"), VERDICT)
    return stacks_text(
        merged, width, glyphs, around(snapshot, VERDICT, merged, read, POLICY), shape
    )


def test_the_odd_one_comes_first_with_its_worker_and_its_source():
    assert (
        text_of(dumps.with_stacks(HANG)) == "8 ranks asked, 8 answered (8 by agent) 22:13:20\n"
        "├─ ✖ 1 rank [5]         train.py:80 train_step  in the DataLoader\n"
        "│    main.py:12 main › train.py:80 train_step › torch (4 frames) › _try_get_data\n"
        "│    worker 4811: data.py:40 load_image › tarfile (1 frame) › read\n"
        "│      38 │ with open(path) as tar:\n"
        "│      39 │\n"
        "│    → 40 │     return decode(tar)\n"
        "│      41 │ # next\n"
        "└─ 7 ranks [0-4,6,7]    train.py:88 train_step  waiting in all_reduce #74893\n"
        "     main.py:12 main › train.py:88 train_step › torch (9 frames) › backward\n"
        "\n"
        "other threads\n"
        "  8 ranks [0-7], 16 threads  QueueFeederThread  threading.py:327 wait\n"
    )


def test_the_tree_has_every_frame_once():
    lines = text_of(dumps.with_stacks(HANG), shape=Shape(tree=True)).splitlines()

    assert lines[1:5] == [
        "└─ 8 ranks [0-7]",
        "      main.py:12 main",
        "   ├─ 1 rank [5]  in the DataLoader",
        "   │     train.py:80 train_step",
    ]
    assert lines[10:12] == [
        "   └─ 7 ranks [0-4,6,7]  waiting in all_reduce #74893",
        "         train.py:88 train_step",
    ]


def test_other_threads_in_full_on_demand():
    lines = text_of(dumps.with_stacks(HANG), shape=Shape(threads=True)).splitlines()

    assert lines[-2:] == [
        "└─ 8 ranks [0-7], 16 threads QueueFeederTh…  threading.py:327 wait",
        "     threading.wait",
    ]


def test_a_plain_terminal_gets_no_character_beyond_ascii():
    assert text_of(dumps.with_stacks(HANG), glyphs=ASCII).isascii()
    assert text_of(dumps.with_stacks(HANG), shape=Shape(True, True), glyphs=ASCII).isascii()


def test_who_did_not_answer_is_reported_with_the_reason_and_those_alike_together():
    stacks = [
        dumps.stacks_of(0),
        *(Stacks("r1", rank, 4800 + rank, NOW, why="stopped") for rank in (1, 2, 3)),
    ]

    assert stacks_text(merge(stacks), 80).splitlines()[:3] == [
        "4 ranks asked, 1 answered (1 by agent) 22:13:20",
        "▲ each of ranks 1-3 did not answer: stopped",
        "└─ 1 rank [0]  train.py:88 train_step",
    ]


def test_processes_that_are_no_ranks_are_told_by_their_pids():
    stacks = [
        Stacks("r", None, pid, NOW, "py-spy", (ThreadStack((LOAD, MAIN), main=True),))
        for pid in (11, 12)
    ]

    assert stacks_text(merge(stacks), 80).splitlines()[:2] == [
        "2 processes asked, 2 answered (2 by py-spy) 22:13:20",
        "└─ 2 pids [11, 12]  data.py:40 load_image",
    ]


def test_a_file_that_was_changed_since_is_reported_and_not_shown():
    merged = merge([dumps.stacks_of(0)])
    lines = stacks_text(
        merged, 80, around=Around(read=lambda *_: Excerpt(changed=True))
    ).splitlines()

    assert lines[3] == "     (train.py has changed since the job started)"


def test_the_excerpt_is_the_main_threads_where_it_does_not_wait_for_a_worker():
    asked = []
    own = Stacks("r", 5, 1, NOW, "agent", (ThreadStack((STEP, MAIN), main=True),))
    merged = merge([own, dumps.stacks_of(0), dumps.stacks_of(1), dumps.worker_stacks(5)])
    stacks_text(merged, 80, around=Around(read=lambda file, line, _: asked.append((file, line))))

    assert asked == [(STEP.file, STEP.line)]


def test_workers_without_work_are_one_line():
    idle = [
        Stacks(
            "r",
            0,
            pid,
            NOW,
            "signal",
            (ThreadStack((StackFrame("get", "/usr/lib/python3.11/queue.py", 1),), main=True),),
            worker=True,
        )
        for pid in (1, 2, 3)
    ]

    assert (
        "     3 workers waiting for work"
        in stacks_text(merge([dumps.stacks_of(0), *idle]), 80).splitlines()
    )


def test_what_a_forked_worker_has_from_its_parent_is_not_where_it_is():
    inherited = (
        LOAD,
        StackFrame("_bootstrap", "/usr/lib/python3.11/multiprocessing/process.py", 314),
        STEP,
        MAIN,
    )
    worker = Stacks("r", 0, 7, NOW, "signal", (ThreadStack(inherited, main=True),), worker=True)

    assert [frame.function for frame in merge([worker]).workers[0].frames] == ["load_image"]


def test_a_deep_path_keeps_its_beginning_and_its_end():
    deep = tuple(StackFrame("walk", "/home/ada/tree.py", line) for line in range(40))
    line = stacks_text(
        merge([Stacks("r", 0, 1, NOW, "agent", (ThreadStack((*deep, STEP, MAIN), main=True),))]),
        200,
    )

    assert "main.py:12 main › train.py:88 train_step › (34 more) › tree.py:5 walk" in line


def test_a_line_that_would_move_the_cursor_does_not():
    bad = StackFrame("f\x1b[2J", "/home/ada/a\n.py", 1)
    text = stacks_text(
        merge([Stacks("r", 0, 1, NOW, "agent", (ThreadStack((bad,), "x\r", main=False),))]), 80
    )

    assert "\x1b" not in text
    assert "\r" not in text


NAMES = st.text(max_size=30)
THREADS = st.builds(
    ThreadStack,
    st.lists(st.builds(StackFrame, NAMES, NAMES, st.integers(-1, 10**7)), max_size=12).map(tuple),
    st.none() | NAMES,
    main=st.booleans(),
)
STACKS = st.lists(
    st.builds(
        Stacks,
        st.just("r"),
        st.none() | st.integers(0, 99_999),
        st.integers(0, 2**31),
        st.integers(0, 2**62),
        st.sampled_from(["", "agent", "py-spy"]),
        st.lists(THREADS, max_size=4).map(tuple),
        st.none() | NAMES,
        st.booleans(),
    ),
    max_size=6,
)


@settings(max_examples=60)
@given(
    STACKS, st.integers(20, 200), st.booleans(), st.booleans(), st.sampled_from([UNICODE, ASCII])
)
def test_no_line_is_wider_than_it_may_be(stacks, width, tree, threads, glyphs):
    setting = Around(
        {0: "waiting " * 20}, frozenset({0}), {}, lambda *_: replace(SOURCE, lines=("x" * 300,) * 4)
    )
    lines = stacks_lines(merge(stacks), width, glyphs, setting, Shape(tree, threads))

    assert all(line_width(line) <= width for line in lines)


@given(STACKS)
def test_json_has_every_process_that_was_asked(stacks):
    found = json.loads(json.dumps(stacks_json(merge(stacks), "train", True, 1)))
    given = {(one.of_rank, one.pid) for one in stacks if not one.worker}

    assert found["schema"] == "ddtop.stacks/1"
    assert {one["pid"] for one in found["unanswered"]} <= {pid for _, pid in given}
    assert all(one["method"] in ("", "agent", "py-spy") for one in found["groups"])


def test_json_has_one_group_a_way_of_taking_it():
    stacks = [dumps.stacks_of(0), msgspec.structs.replace(dumps.stacks_of(1), method="signal")]
    found = stacks_json(merge(stacks), "train", False, 7)

    assert {key: found[key] for key in ("job", "live", "time_unix_ns", "unanswered")} == {
        "job": "train", "live": False, "time_unix_ns": 7, "unanswered": [],
    }  # fmt: skip
    assert [(one["ranks"], one["thread"], one["method"]) for one in found["groups"]] == [
        ([0], "main", "agent"),
        ([1], "main", "signal"),
        ([0], "QueueFeederThread", "agent"),
        ([1], "QueueFeederThread", "signal"),
    ]
    assert found["groups"][0]["frames"][-1] == {
        "function": "main", "file": "/home/ada/main.py", "line": 12, "owner": "user",
    }  # fmt: skip


# -- which stacks belong together


def test_the_last_dump_is_the_newest_whoever_asked():
    snapshot = dumps.with_stacks(HANG, (0, 1, 2), "auto-1", NOW - 60 * SECOND)
    snapshot = dumps.with_stacks(snapshot, (1,), "r2", NOW)

    assert last_request(snapshot) == "r2"
    assert last_request(HANG) is None
    assert {stacks.of_rank for stacks in answers(snapshot, "r2")} == {1}


def test_stacks_that_were_taken_for_somebody_else_meanwhile_count():
    """Two people press D in the same second: each rank is kept once, with the later name."""
    snapshot = dumps.with_stacks(HANG, (0, 1), "r1", NOW)
    snapshot = dumps.with_stacks(snapshot, (2,), "of-another", NOW + 1)
    snapshot = dumps.with_stacks(snapshot, (3,), "older", NOW - SECOND)

    assert [stacks.of_rank for stacks in answers(snapshot, "r1", NOW)] == [0, 1, 2]
    assert [stacks.of_rank for stacks in answers(snapshot, "r1", NOW, (2,))] == [2]


def test_ranks_that_are_gone_are_listed_as_unanswered_when_all_are_asked():
    snapshot = dumps.with_stacks(HANG, tuple(range(6)))
    gone = replace(
        snapshot.ranks[6],
        process={"exit": Exit(6, 4806, 7, None, False, 0, "pidfd"), "exit_unix_ns": NOW - SECOND},
    )
    ranks = (*snapshot.ranks[:6], gone, RankFacts(7, State.MISSING))
    merged = merge(answers(replace(snapshot, ranks=ranks), "r1", NOW))

    assert [(one.rank, one.why) for one in merged.unanswered] == [
        (6, "its process is gone: exit code 7"),
        (7, "it was never seen"),
    ]
    assert merged.asked == 8


def test_a_dump_of_one_rank_does_not_list_the_others_as_missing():
    snapshot = dumps.with_stacks(HANG, (3,))

    assert [stacks.of_rank for stacks in answers(snapshot, "r1")] == [3]


def test_what_a_rank_does_now_is_not_said_of_stacks_from_before_it_moved():
    snapshot = dumps.with_stacks(HANG, None, "r1", NOW - 60 * SECOND)
    merged = merged_of(answers(snapshot, "r1"), VERDICT)
    moved = replace(snapshot.ranks[0], progress={"last_unix_ns": NOW - 50 * SECOND})
    ranks = (moved, *snapshot.ranks[1:])

    assert 0 not in around(replace(snapshot, ranks=ranks), VERDICT, merged, None, POLICY).doing
    still = replace(moved, progress={"last_unix_ns": NOW - 90 * SECOND})
    assert (
        around(replace(snapshot, ranks=(still, *ranks[1:])), VERDICT, merged, None, POLICY)
        .doing[0]
        .startswith("waiting in")
    )


def test_who_died_after_the_stacks_were_taken_is_not_at_fault_in_them():
    """A person killed the hanging job. The stacks still show which rank hung."""
    gone = replace(
        HANG.ranks[5],
        process={"exit": Exit(5, 4805, None, 9, None, 0, "pidfd"), "exit_unix_ns": NOW},
    )
    snapshot = replace(HANG, ranks=(*HANG.ranks[:5], gone, *HANG.ranks[6:]))

    assert at_fault(VERDICT, snapshot) == ()
    assert at_fault(VERDICT, HANG) == (5,)


def test_what_a_rank_said_before_it_fell_silent_is_no_wait():
    """C code holds its GIL. Its last report was from inside a collective that has long
    completed.
    """
    snapshot = dumps.with_stacks(HANG)
    merged = merged_of(answers(snapshot, "r1"), VERDICT)
    silent = replace(snapshot.ranks[0], agent={"report_age_s": 5.0})
    said = around(
        replace(snapshot, ranks=(silent, *snapshot.ranks[1:])), VERDICT, merged, None, POLICY
    ).doing

    assert "waiting in all_reduce" not in said.get(0, "")
    assert said[1] == "waiting in all_reduce #74893"


def test_a_dump_that_nobody_asked_for_says_so():
    stacks = msgspec.structs.replace(dumps.stacks_of(0), automatic=True)

    assert (
        plain(head_line(merge([stacks]), ", 2 min ago"))
        == "1 rank asked, 1 answered (1 by agent) 22:13:20, 2 min ago, automatically"
    )


def test_of_ranks_at_one_line_of_which_one_does_not_wait_none_is_said_to_wait_for_it():
    """The sleeping rank was reported as waiting in the others' all_reduce, which was called from
    the same line.
    """
    one = next(
        one
        for one in merge([dumps.stacks_of(number) for number in (0, 1, 2)]).main
        if len(one.ranks) == 3
    )
    waiting = {0: "waiting in all_reduce #9", 2: "waiting in all_reduce #9"}

    assert (
        doing_text(one, {**waiting, 1: "asleep"})
        == "ranks 0,2: waiting in all_reduce #9; rank 1: asleep"
    )
    assert doing_text(one, waiting) == "ranks 0,2: waiting in all_reduce #9"
    assert doing_text(one, {**waiting, 1: waiting[0]}) == waiting[0]
    assert doing_text(one, {}) == ""
