"""Stacks of many ranks as classes and a tree: which belong together, and which come first."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtop.model.stacks import MAIN, Owner, merge, owner_of, package_of, role_of, tree
from ddtop.wire.records import StackFrame, Stacks, ThreadStack

TORCH = "/venv/lib/python3.11/site-packages/torch"
LOOP = StackFrame("main", "/home/ada/main.py", 12)
STEP = StackFrame("step", "/home/ada/train.py", 88)
LOAD = StackFrame("load", "/home/ada/data.py", 40)
BACKWARD = StackFrame("backward", f"{TORCH}/_tensor.py", 521)
AGENT = StackFrame("_run", "/venv/lib/python3.11/site-packages/ddtop/agent/runtime.py", 100)
THREADING = StackFrame("_bootstrap", "/usr/lib/python3.11/threading.py", 966)


def thread(*frames, main=True, name=None):
    return ThreadStack(frames, name, None, main)


def answer(rank, *threads, method="agent", pid=None, taken=1000, **more):
    return Stacks("r", rank, 100 + rank if pid is None else pid, taken, method, threads, **more)


def waiting(rank, line=521, **more):
    """A rank in backward. Each look finds it at a different line of torch's loop."""
    return answer(
        rank, thread(StackFrame("backward", f"{TORCH}/_tensor.py", line), STEP, LOOP), **more
    )


def loading(rank, **more):
    return answer(rank, thread(LOAD, STEP, LOOP), **more)


def ranks_of(merged):
    return [one.ranks for one in merged.main]


def test_the_rank_that_is_elsewhere_comes_first_and_is_odd():
    merged = merge([waiting(0), waiting(1), loading(2), waiting(3)])

    assert ranks_of(merged) == [(2,), (0, 1, 3)]
    assert [merged.is_odd(one) for one in merged.main] == [True, False]
    assert (merged.main[0].user_frame.function, merged.main[1].user_frame.line) == ("load", 88)


def test_lines_of_the_program_separate_ranks_and_lines_of_a_library_do_not():
    """A waiting loop moves on; two branches of the training are two places."""
    other = answer(2, thread(BACKWARD, StackFrame("step", "/home/ada/train.py", 95), LOOP))

    assert ranks_of(merge([waiting(0, 521), waiting(1, 533), other])) == [(2,), (0, 1)]


def test_how_a_stack_was_taken_does_not_separate_ranks():
    merged = merge([waiting(0), waiting(1, method="signal"), waiting(2, method="signal")])

    assert ranks_of(merged) == [(0, 1, 2)]
    assert merged.methods == (("agent", 1), ("signal", 2))


def test_a_rank_at_fault_comes_before_a_smaller_class():
    merged = merge(
        [loading(0), loading(1), waiting(2), waiting(3), waiting(4), answer(5, thread(LOOP))],
        blamed=[1],
    )

    assert ranks_of(merged) == [(0, 1), (5,), (2, 3, 4)]
    assert [merged.is_odd(one) for one in merged.main] == [True, False, False]


def test_where_all_are_alike_nothing_is_odd():
    merged = merge([waiting(1), waiting(0)])

    assert (ranks_of(merged), merged.odd) == ([(0, 1)], frozenset())


def test_a_process_that_did_not_answer_is_listed_with_its_reason():
    merged = merge(
        [waiting(0), answer(1, method="", why="stopped (state T)"), answer(2, method="")]
    )

    assert (merged.asked, merged.answered) == (3, 1)
    assert [(one.rank, one.why) for one in merged.unanswered] == [
        (1, "stopped (state T)"),
        (2, "it did not answer"),
    ]


def test_the_newest_of_two_answers_counts():
    merged = merge([waiting(0, taken=2000), loading(0, taken=1000)])

    assert merged.main[0].user_frame.function == "step"
    assert (merged.asked, merged.first_unix_ns) == (1, 2000)


def test_workers_are_in_classes_of_their_own():
    merged = merge([waiting(0), loading(0, pid=4811, worker=True)])

    assert (ranks_of(merged), merged.asked) == ([(0,)], 1)
    assert [(one.ranks, one.pids) for one in merged.workers] == [((0,), (4811,))]


def test_ddtops_own_thread_and_frames_are_left_out():
    wrapper = StackFrame(
        "wrapped", "/venv/lib/python3.11/site-packages/ddtop/agent/wrap_distributed.py", 20
    )
    nameless = thread(StackFrame("wait", THREADING.file, 300), AGENT, THREADING, main=False)
    one = answer(
        0, thread(BACKWARD, wrapper, STEP), thread(LOAD, main=False, name="ddtop"), nameless
    )
    merged = merge([one])

    assert [frame.function for frame in merged.main[0].frames] == ["backward", "step"]
    assert merged.others == ()


def test_a_thread_of_the_program_that_ddtop_wraps_is_still_the_programs():
    one = answer(0, thread(AGENT, LOAD, THREADING, main=False, name="Thread-7 (prefetch)"))

    assert [(one.role, len(one.frames)) for one in merge([one]).others] == [
        ("Thread-N (prefetch)", 2)
    ]


def test_the_same_thread_of_two_ranks_is_the_same_whatever_its_number():
    merged = merge([
        answer(rank, thread(STEP), thread(LOAD, THREADING, main=False, name=f"Thread-{rank + 3}"))
        for rank in (0, 1)
    ])  # fmt: skip

    assert [(one.role, one.ranks) for one in merged.others] == [("Thread-N", (0, 1))]


def test_a_thread_without_a_name_is_one_of_those_at_the_same_place():
    """Faulthandler reports no names, as of a helper of a rank whose GIL is held."""
    helper = thread(LOAD, main=False, name="Thread-1 (helper)")
    merged = merge(
        [
            answer(0, thread(STEP), helper),
            answer(1, thread(STEP), thread(LOAD, main=False), method="signal"),
        ]
    )

    assert [(one.role, one.ranks) for one in merged.others] == [("Thread-N (helper)", (0, 1))]


def test_a_thread_without_a_name_that_could_be_either_stays_without():
    names = [thread(LOAD, main=False, name=name) for name in ("reader", "writer")]
    merged = merge(
        [answer(0, thread(STEP), *names), answer(1, thread(STEP), thread(LOAD, main=False))]
    )

    assert sorted(one.role for one in merged.others) == ["reader", "thread", "writer"]


def test_a_thread_that_calls_itself_main_is_not_the_main_thread():
    assert role_of(ThreadStack((), "main", None, False)) != MAIN


@pytest.mark.parametrize(
    ("file", "owner", "package"),
    [
        ("/home/ada/train.py", Owner.USER, "train"),
        ("/home/ada/ddtop/train.py", Owner.USER, "train"),
        ("/venv/lib/python3.11/site-packages/ddtop/demo/train.py", Owner.USER, "ddtop"),
        ("/venv/lib/python3.11/site-packages/ddtop/agent/report.py", Owner.OWN, "ddtop"),
        (f"{TORCH}/nn/modules/module.py", Owner.FRAMEWORK, "torch"),
        ("/usr/lib/python3/dist-packages/yaml/__init__.py", Owner.FRAMEWORK, "yaml"),
        ("/usr/lib/python3.12/threading.py", Owner.FRAMEWORK, "threading"),
        ("/opt/lib64/python3.13t/multiprocessing/queues.py", Owner.FRAMEWORK, "multiprocessing"),
        ("<frozen importlib._bootstrap>", Owner.FRAMEWORK, "importlib"),
        ("<string>", Owner.FRAMEWORK, "string"),
        ("<stdin>", Owner.USER, "stdin"),
        ("", Owner.NATIVE, "native"),
        ("/venv/lib/libtorch_cpu.so", Owner.NATIVE, "torch"),
        ("libc.so.6", Owner.NATIVE, "c"),
        ("/pytorch/c10/util/poll.cpp", Owner.NATIVE, "native"),
    ],
)
def test_the_path_decides_on_a_frame_that_no_agent_has_judged(file, owner, package):
    assert owner_of(StackFrame("f", file, 1)) is owner
    assert package_of(file) == package


def test_the_judgement_of_the_agent_precedes_the_path():
    assert owner_of(StackFrame("f", f"{TORCH}/my_fork.py", 1, True)) is Owner.USER
    assert owner_of(StackFrame("f", "/opt/python/queue.py", 1, False)) is Owner.FRAMEWORK


def test_the_tree_branches_where_the_ranks_differ():
    branches = tree(merge([waiting(0), waiting(1), loading(2)]).main)

    assert [
        ([frame.function for frame in one.frames], one.ranks, len(one.last)) for one in branches
    ] == [(["main", "step"], (0, 1, 2), 1), (["load"], (2,), 2), (["backward"], (0, 1), 2)]
    assert [one.last for one in branches] == [(True,), (True, False), (True, True)]


def test_a_stack_that_is_the_beginning_of_another_ends_inside_the_tree():
    branches = tree(merge([answer(0, thread(STEP, LOOP)), loading(1)]).main)

    assert [([end.ranks for end in one.ends], one.ranks) for one in branches] == [
        ([(0,)], (0, 1)),
        ([(1,)], (1,)),
    ]


def test_a_stack_deeper_than_the_recursion_limit_is_a_tree_too():
    """A rank in an endless recursion."""
    deep = [answer(rank, thread(*[STEP] * (3000 + rank))) for rank in (0, 1)]

    assert [len(one.frames) for one in tree(merge(deep).main)] == [3000, 1]


FRAMES = st.builds(
    StackFrame,
    st.sampled_from("fgh"),
    st.sampled_from(["/home/ada/a.py", f"{TORCH}/b.py", "", AGENT.file, "<string>"]),
    st.integers(1, 3),
    st.sampled_from([None, True, False]),
)
THREADS = st.builds(
    ThreadStack,
    st.lists(FRAMES, max_size=4).map(tuple),
    st.sampled_from([None, "main", "Thread-1", "Thread-2", "ddtop"]),
    st.none(),
    st.booleans(),
)
ANSWERS = st.lists(
    st.builds(
        Stacks,
        st.just("r"),
        st.one_of(st.none(), st.integers(0, 5)),
        st.integers(1, 4),
        st.integers(0, 2),
        st.sampled_from(["", "agent", "signal"]),
        st.lists(THREADS, max_size=3).map(tuple),
        worker=st.booleans(),
    ),
    max_size=8,
)


def test_two_answers_of_one_process_of_which_one_names_its_threads_are_merged():
    """Two processes without a rank may have the same pid: one in a container, or a worker."""
    named = Stacks("r", None, 1, 1, "agent", (thread(LOAD, name="main"),))
    unnamed = Stacks("r", None, 1, 1, "agent", (thread(STEP),), worker=True)

    merged = merge([named, unnamed])

    assert [len(merged.classes), len(merged.workers)] == [1, 1]


@given(ANSWERS)
def test_every_thread_is_in_exactly_one_class(stacks):
    merged = merge(stacks)
    seen = [
        (one.worker, member.rank, member.pid, member.place)
        for one in merged.classes + merged.workers
        for member in one.members
    ]

    assert len(seen) == len(set(seen))
    newest = {}
    for one in stacks:
        key = (one.worker, -1 if one.of_rank is None else one.of_rank, one.pid)
        newest[key] = max(newest.get(key, 0), one.taken_unix_ns)
    assert {one[:3] for one in seen} <= set(newest)
    assert merged.asked == sum(not worker for worker, _, _ in newest)
    assert merged.asked == merged.answered + len(merged.unanswered)


@given(ANSWERS)
def test_a_main_thread_is_never_lost(stacks):
    one = {(s.worker, s.of_rank, s.pid): s for s in stacks}
    merged = merge(one.values())
    shown = [
        member
        for found in merged.classes + merged.workers
        if found.main
        for member in found.members
    ]

    assert len(shown) == sum(thread.main for stack in one.values() for thread in stack.threads)


@given(ANSWERS, st.randoms(use_true_random=False))
def test_the_order_of_arrival_changes_nothing(stacks, order: random.Random):
    shuffled = list(stacks)
    order.shuffle(shuffled)

    assert merge(shuffled) == merge(stacks)


@given(ANSWERS)
def test_the_classes_are_the_ends_of_the_tree(stacks):
    merged = merge(stacks)
    classes = [one for one in merged.classes if one.frames]
    branches = tree(classes)
    ends = [id(end) for one in branches for end in one.ends]

    assert sorted(ends) == sorted(map(id, classes))
    assert all(one.frames for one in branches)
    assert all(
        end in one.classes and end.frames[0].key == one.frames[-1].key
        for one in branches
        for end in one.ends
    )
