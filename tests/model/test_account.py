"""What a rank is doing, as a word and a phrase, and where it is instead."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtop.model.account import WORDS, activity_text, does, fresh_stacks, stack_line
from ddtop.model.facts import (
    AgentFacts,
    CommFacts,
    DumpFacts,
    LoaderFacts,
    ProcessFacts,
    RankFacts,
    ReportedFacts,
    State,
)
from ddtop.say.evidence import process_line, stack_lines
from ddtop.say.places import where_text
from ddtop.wire.records import (
    Exit,
    Loader,
    OpenCall,
    Place,
    ProcessState,
    StackFrame,
    Stacks,
    ThreadStack,
)

LIB = "/usr/lib/python3.11/"
TORCH = "/usr/lib/python3.11/site-packages/torch/"
USER = StackFrame("step", "/home/ada/sim.py", 31, True)


def place(**more):
    return Place("take", "/home/ada/train.py", 53, **({"since_unix_ns": 100} | more))


def process(state="S", **more):
    return ProcessState(1, 4801, state, **more)


def rank(**more):
    given = {"place": place(), "working": False, "process": process(), "cpu_ratio": 0.0} | more
    return facts_of(given.pop("state", State.CULPRIT), **given)


PARTS = {
    "reported": (ReportedFacts, "place activity line_age_s"),
    "comm": (CommFacts, "open_calls"),
    "loader": (LoaderFacts, "loader"),
    "process": (ProcessFacts, "process working cpu_ratio wakes_per_s exit"),
    "agent": (AgentFacts, "heard_unix_ns"),
    "dump": (DumpFacts, "stacks worker_stacks"),
}
"""Which part of the facts has which field; `process` and `loader` are the reports in them."""


def facts_of(state, **given):
    """The facts of rank 1. Each field goes to the part that has it."""
    parts = {
        part: kind(
            **{FIELDS.get(one, one): given.pop(one) for one in names.split() if one in given}
        )
        for part, (kind, names) in PARTS.items()
    }
    assert not given
    return RankFacts(1, state, **parts)


FIELDS = {"process": "report", "loader": "report"}


def frozen(**more):
    """Its agent is silent. The last report came at 200."""
    return rank(state=State.SILENT, heard_unix_ns=200, **more)


def dump(*frames, at=300, method="signal", **more):
    return Stacks("r1", 1, 4801, at, method, (ThreadStack((*frames, USER), main=True),), **more)


OF_FRAMES = [
    ("DataLoader", "loader", "in the DataLoader"),
    ("child", "child", "waiting for a child process"),
    ("pool", "child", "waiting for a pool of worker processes"),
    ("future", "lock", "waiting for a future of another thread or process"),
    ("lock", "lock", "waiting for a lock"),
    ("queue", "queue", "waiting for a queue"),
    ("pipe", "pipe", "waiting on a pipe"),
    ("socket", "socket", "waiting on a socket"),
    ("rpc", "rpc", "waiting for the answer to an RPC"),
    ("asyncio", "socket", "waiting in its event loop"),
    ("stdin", "stdin", "waiting for input from the terminal"),
    ("file", "file", "reading or writing a file"),
    ("checkpoint-save", "checkpoint-save", "saving a checkpoint"),
    ("checkpoint-load", "checkpoint-load", "loading a checkpoint"),
    ("cuda-sync", "cuda-sync", "waiting for the GPU"),
    ("debugger", "debugger", "in a debugger"),
    ("compile", "compile", "compiling"),
    ("import", "import", "importing a module"),
    ("exit", "exit", "waiting at exit for its other threads"),
]


@pytest.mark.parametrize(("waits_on", "word", "text"), OF_FRAMES)
def test_the_library_frame_below_the_users_line_says_it(waits_on, word, text):
    one = rank(place=place(waits_on=waits_on))

    assert (does(one).word, activity_text(one)) == (word, text)
    assert where_text(one) == f"{text} (train.py:53 take)"


OF_KERNEL = [
    ({"syscall": "clock_nanosleep"}, "sleep", "asleep"),
    ({"syscall": "futex"}, "lock", "waiting for a lock"),
    ({"syscall": "wait4", "file": "child 4811"}, "child", "waiting for its child (pid 4811)"),
    ({"syscall": "wait4"}, "child", "waiting for a child process"),
    ({"syscall": "vfork", "wchan": "kernel_clone"}, "child",
     "waiting for a child process to start its program"),
    ({"syscall": "read", "file": "/data/shard-17.tar"}, "file", "reading /data/shard-17.tar"),
    ({"syscall": "pwrite64", "file": "/ckpt/7.pt"}, "file", "writing /ckpt/7.pt"),
    ({"syscall": "fsync", "file": "/ckpt/7.pt"}, "file", "flushing /ckpt/7.pt"),
    ({"syscall": "fsync"}, "file", "flushing a file to its disk"),
    ({"syscall": "close", "file": "/ckpt/7.pt"}, "file", "closing /ckpt/7.pt"),
    ({"syscall": "getdents64", "file": "/data"}, "file", "reading /data"),
    ({"syscall": "fallocate", "file": "/ckpt/7.pt"}, "file", "writing /ckpt/7.pt"),
    ({"syscall": "copy_file_range", "file": "/ckpt/7.pt"}, "file", "busy with /ckpt/7.pt"),
    ({"syscall": "openat", "wchan": "rpc_wait_bit_killable"}, "file",
     "opening or looking up a file"),
    ({"syscall": "openat", "wchan": "wait_for_partner"}, "pipe",
     "opening a named pipe (nobody at the other end)"),
    ({"syscall": "openat", "wchan": "wait_for_partner", "file": "/run/labels"}, "pipe",
     "opening the named pipe /run/labels (nobody at the other end)"),
    ({"syscall": "openat", "file": "/data/a"}, "file", "opening or looking up /data/a"),
    ({"syscall": "mkdir", "file": "/data/a"}, "file", "creating, renaming or removing /data/a"),
    ({"syscall": "renameat2"}, "file", "creating, renaming or removing a file"),
    ({"syscall": "flock", "file": "/data/x.lock"}, "lock", "waiting for a lock on /data/x.lock"),
    ({"syscall": "read", "file": "/run/fifo", "wchan": "anon_pipe_read"}, "pipe",
     "reading the pipe /run/fifo"),
    ({"syscall": "read", "file": "pipe"}, "pipe", "reading a pipe"),
    ({"syscall": "write", "file": "pipe"}, "pipe", "writing to a pipe"),
    ({"syscall": "recvfrom", "file": "socket"}, "socket", "waiting on a socket"),
    ({"syscall": "connect", "file": "socket"}, "socket", "connecting to a server"),
    ({"syscall": "accept4", "file": "socket"}, "socket", "waiting for a connection"),
    ({"syscall": "recvfrom", "file": "socket", "remote": "10.0.0.7:443"}, "socket",
     "waiting on a socket to 10.0.0.7:443"),
    ({"syscall": "poll"}, "socket", "waiting in poll"),
    ({"syscall": "read", "file": "eventfd"}, "lock", "waiting for an event"),
    ({"syscall": "read", "file": "stdin"}, "stdin", "waiting for input on its standard input"),
    ({"syscall": "pselect6", "file": "stdin"}, "stdin", "waiting for input on its standard input"),
    ({"syscall": "read", "file": "stdin", "wchan": "n_tty_read"}, "stdin",
     "waiting for input from the terminal"),
    ({"syscall": "read", "file": "terminal"}, "stdin", "waiting for input from the terminal"),
    ({"syscall": "ioctl", "file": "/dev/nvidiactl"}, "cuda-sync", "waiting for the GPU driver"),
    ({"wchan": "hrtimer_nanosleep"}, "sleep", "asleep"),
    ({"wchan": "folio_wait_bit_common", "state": "D"}, "file", "waiting for the disk"),
    ({"wchan": "request_wait_answer"}, "file", "waiting for a FUSE file system"),
    ({"wchan": "nfs_wait_bit_killable", "state": "D"}, "file", "waiting for a file server"),
    ({"wchan": "wait_woken"}, "socket", "waiting on a socket"),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "word", "text"), OF_KERNEL)
def test_without_a_library_frame_the_kernel_says_it(seen, word, text):
    one = rank(process=process(**seen))

    assert (does(one).word, activity_text(one)) == (word, text)
    assert where_text(one) == f"{text} in take (train.py:53)"


@pytest.mark.parametrize(
    ("waits_on", "seen", "text"),
    [
        ("child", {"syscall": "wait4", "file": "child 4811"}, "waiting for its child (pid 4811)"),
        ("file", {"syscall": "read", "file": "/data/a.tar"}, "reading /data/a.tar"),
        ("checkpoint-save", {"syscall": "write", "file": "/ckpt/7.pt"},
         "saving a checkpoint, writing /ckpt/7.pt"),
        ("checkpoint-load", {"syscall": "pread64", "file": "/ckpt/7.pt"},
         "loading a checkpoint, reading /ckpt/7.pt"),
        ("DataLoader", {"syscall": "read", "file": "/data/a.tar"},
         "in the DataLoader, reading /data/a.tar"),
        ("lock", {"syscall": "read", "file": "/data/a.tar"}, "waiting for a lock"),
        ("socket", {"syscall": "connect", "file": "socket"}, "connecting to a server"),
        ("socket", {"syscall": "recvfrom", "file": "socket"}, "waiting on a socket"),
        ("socket", {"syscall": "connect", "file": "socket", "remote": "10.0.0.7:443"},
         "connecting to 10.0.0.7:443"),
        ("lock", {"syscall": "recvfrom", "file": "socket", "remote": "10.0.0.7:443"},
         "waiting for a lock"),
        ("asyncio", {"syscall": "epoll_wait"}, "waiting in its event loop"),
        ("file", {"state": "R", "syscall": "read", "file": "/data/a.tar"},
         "reading or writing a file"),
    ],
)  # fmt: skip
def test_the_kernel_adds_the_file_or_the_child_to_what_frames_say(waits_on, seen, text):
    assert activity_text(rank(place=place(waits_on=waits_on), process=process(**seen))) == text


@pytest.mark.parametrize(
    ("more", "word", "text"),
    [
        ({"process": process("T")}, "stopped", "stopped"),
        ({"process": process("t")}, "stopped", "held by a debugger"),
        ({"process": process("D", frozen=True)}, "frozen", "frozen by its cgroup"),
        ({"process": process(gc_since_unix_ns=5)}, "gc", "in a garbage collection"),
        ({"process": process(exiting=True)}, "exit", "exiting the interpreter"),
        ({"process": process(exiting=True, gc_since_unix_ns=5)}, "exit", "exiting the interpreter"),
        (
            {"process": process(exiting=True), "place": place(waits_on="exit")},
            "exit",
            OF_FRAMES[-1][2],
        ),
        ({"open_calls": (OpenCall("recv", 1),)}, "p2p", "in recv"),
        (
            {"open_calls": (OpenCall("init_process_group", 1),)},
            "collective",
            "in init_process_group",
        ),
        ({"place": place(waits_on="collective", callee="barrier")}, "collective", "in barrier"),
        ({"place": place(waits_on="p2p", callee="Recv")}, "p2p", "in Recv"),
        ({"place": place(waits_on="p2p", callee="wait"), "process": None}, "unknown", None),
        ({"activity": "loader"}, "loader", "in the DataLoader"),
        ({"activity": "cuda_sync", "place": place()}, "cuda-sync", "waiting for the GPU"),
        ({"activity": "backward", "place": place(callee="run")}, "python", "in backward"),
        ({"process": None, "working": None}, "unknown", None),
        ({"place": None, "process": None}, "unknown", None),
    ],
)
def test_what_is_certain_comes_first(more, word, text):
    one = rank(**more)

    assert (does(one).word, activity_text(one)) == (word, text)


def test_a_busy_rank_computes_in_python_while_its_lines_change_and_else_stays_at_one_line():
    busy = {"working": True, "cpu_ratio": 1.0, "process": process("R")}

    assert activity_text(rank(**busy, line_age_s=0.5)) == "computing in Python"
    assert does(rank(**busy, line_age_s=8.0)).word == "c"
    assert does(frozen(**busy)).text == "computing in C"
    assert activity_text(rank(**busy, place=place(callee="conv2d"))) == "computing in conv2d"
    assert where_text(rank(**busy)) == "in take (train.py:53)"


def test_the_work_of_its_children_is_not_called_its_own():
    """Its DataLoader workers decode while its main thread sleeps."""
    assert (
        activity_text(rank(working=True, cpu_ratio=1.9, process=process("S", children=2))) is None
    )


def test_a_busy_rank_that_is_asleep_at_this_instant_does_not_wait_for_a_lock():
    """A thread that works sleeps now and then; seconds in one file are no coincidence."""
    assert activity_text(rank(working=True, process=process(syscall="futex"))) is None
    assert (
        activity_text(rank(working=True, process=process("D", syscall="read", file="/a")))
        == "reading /a"
    )


# -- stacks


def test_of_a_silent_rank_the_place_is_that_of_stacks_taken_since():
    """C code holds the GIL. The agent's last report had another line."""
    asleep = process(syscall="clock_nanosleep")

    assert where_text(frozen(stacks=dump())) == "in C called from sim.py:31 step"
    assert (
        where_text(frozen(stacks=dump(), process=asleep))
        == "asleep in C called from sim.py:31 step"
    )
    assert where_text(frozen(stacks=dump(at=150))) == "last seen in take (train.py:53)"
    assert where_text(frozen(process=asleep)) == "asleep, last seen in take (train.py:53)"
    assert where_text(frozen()) == "last seen in take (train.py:53)"
    assert (
        where_text(frozen(place=place(waits_on="collective", callee="barrier")))
        == "last seen in barrier (train.py:53 take)"
    )
    assert where_text(frozen(place=None)) == "at a place that cannot be seen"


def test_a_main_thread_that_waits_for_the_gil_is_not_the_one_that_holds_it():
    """Who waits for the GIL wakes every 5 ms; who holds it in C does not."""
    waits = {"process": process(syscall="futex"), "stacks": dump()}

    assert (
        where_text(frozen(**waits, wakes_per_s=200.0))
        == "waiting at sim.py:31 step for the GIL, held by another thread"
    )
    holder = ThreadStack((StackFrame("decode", "/home/ada/video.py", 9, True),))
    told = Stacks("r1", 1, 4801, 300, "signal", (*dump().threads, holder, ThreadStack(())))
    assert "another thread of rank 1: decode video.py:9" in stack_lines(
        frozen(process=process(syscall="futex"), stacks=told, wakes_per_s=200.0)
    )
    assert (
        where_text(frozen(**waits, wakes_per_s=0.0))
        == "waiting for a lock in C called from sim.py:31 step"
    )


@pytest.mark.parametrize(
    ("waits_on", "told"), [("future", True), ("queue", True), ("sleep", False), ("socket", False)]
)
def test_the_other_threads_of_a_rank_that_waits_for_one_are_told(waits_on, told):
    """A save in the background does not end: its line is not that of the main thread."""
    saver = ThreadStack((StackFrame("upload", "/home/ada/saves.py", 9, True),))
    stacks = Stacks("r1", 1, 4801, 300, "agent", (*dump().threads, saver, ThreadStack(())))
    stands = Place("step", USER.file, 31, waits_on, since_unix_ns=100)
    lines = stack_lines(rank(place=stands, stacks=stacks))

    assert ("another thread of rank 1: upload saves.py:9" in lines) is told


@pytest.mark.parametrize(
    ("frames", "word"),
    [
        (
            [
                StackFrame("acquire", LIB + "threading.py", 1),
                StackFrame("get", LIB + "queue.py", 1),
            ],
            "queue",
        ),
        (
            [
                StackFrame("_poll", LIB + "selectors.py", 1),
                StackFrame("communicate", LIB + "subprocess.py", 1),
            ],
            "child",
        ),
        (
            [
                StackFrame("wait", "", 0),
                StackFrame("result", LIB + "concurrent/futures/_base.py", 1),
            ],
            "lock",
        ),
        (
            [
                StackFrame("_save", TORCH + "serialization.py", 9),
                StackFrame("save", TORCH + "serialization.py", 1),
            ],
            "checkpoint-save",
        ),
        ([StackFrame("load", TORCH + "serialization.py", 1)], "checkpoint-load"),
        (
            [StackFrame("save", TORCH + "distributed/checkpoint/state_dict_saver.py", 1)],
            "checkpoint-save",
        ),
        (
            [
                StackFrame("_compile", TORCH + "_dynamo/convert_frame.py", 1),
                StackFrame("_fn", TORCH + "_dynamo/eval_frame.py", 1),
            ],
            "compile",
        ),
        ([StackFrame("__next__", TORCH + "utils/data/dataloader.py", 1)], "loader"),
        ([StackFrame("all_reduce", TORCH + "distributed/distributed_c10d.py", 1)], "collective"),
        ([StackFrame("run_once", LIB + "asyncio/base_events.py", 1)], "socket"),
        ([StackFrame("_find_and_load", "<frozen importlib._bootstrap>", 1)], "import"),
    ],
)
def test_the_frame_nearest_to_the_users_line_names_a_stack(frames, word):
    assert does(frozen(stacks=dump(*frames))).word == word


def test_a_compiled_forward_is_not_called_compiling():
    """Every call of a compiled model passes through torch._dynamo.eval_frame."""
    frames = [StackFrame("_fn", TORCH + "_dynamo/eval_frame.py", 1)]

    assert does(frozen(stacks=dump(*frames), working=True, cpu_ratio=1.0)).word == "c"


def test_stacks_of_another_place_tell_nothing_of_this_one():
    here = StackFrame("take", "/home/ada/train.py", 53, True)
    told = Stacks("r1", 1, 4801, 150, "agent", (ThreadStack((here,), main=True),))

    assert fresh_stacks(rank(stacks=told)) is told
    assert fresh_stacks(rank(stacks=told, place=place(since_unix_ns=151))) is None
    assert fresh_stacks(rank(stacks=dump(at=150))) is None
    assert fresh_stacks(rank(stacks=Stacks("r1", 1, 4801, 150, why="gone"))) is None


def test_at_most_four_frames_of_the_programs_own_are_shown_innermost_first():
    own = [StackFrame(f"f{n}", "/home/ada/a.py", n, True) for n in range(6)]
    library = StackFrame("wait", LIB + "threading.py", 320)
    told = Stacks("r1", 1, 4801, 300, "signal", (ThreadStack((library, *own), main=True),))

    assert stack_line(told) == "f0 a.py:0 ‹ f1 a.py:1 ‹ f2 a.py:2 ‹ f3 a.py:3"


def test_the_worker_that_owes_the_batch_shows_its_stack():
    worker = Stacks(
        "r1",
        1,
        4811,
        300,
        "signal",
        (ThreadStack((StackFrame("read", "/home/ada/d.py", 7, True),), main=True),),
        worker=True,
    )
    other = Stacks("r1", 1, 4812, 300, "signal", worker.threads, worker=True)
    one = frozen(stacks=dump(), worker_stacks=(other, worker), loader=Loader(2, owing_pid=4811))

    assert stack_lines(one) == [
        "rank 1's stack (by signal): step sim.py:31",
        "worker 4811's stack: read d.py:7",
    ]


def test_the_process_line_has_state_call_and_file():
    one = rank(
        process=process("D", wchan="nfs_wait", syscall="write", file="/ckpt/7.pt", children=2)
    )

    assert process_line(one) == (
        "rank 1 (pid 4801): state D, 0% of a core with its 2 children, wchan nfs_wait, in write of"
        " /ckpt/7.pt"
    )


# -- any input

TEXTS = st.sampled_from(
    [
        "read",
        "write",
        "futex",
        "poll",
        "stdin",
        "pipe",
        "child 7",
        "child x",
        "/a",
        "",
        "x",
        "T",
        "D",
    ]
)
MAYBE = st.none() | TEXTS
FRAMES = st.builds(StackFrame, TEXTS, TEXTS, st.integers(0, 9), st.none() | st.booleans())
PLACES = st.none() | st.builds(
    Place,
    TEXTS,
    TEXTS,
    st.integers(0, 9),
    MAYBE | st.sampled_from([one[0] for one in OF_FRAMES]),
    st.none() | st.integers(0, 9),
    MAYBE,
)
PROCESSES = st.none() | st.builds(
    ProcessState,
    st.just(1),
    st.just(7),
    st.sampled_from("RSDTtZXI?") | st.just(""),
    MAYBE,
    syscall=MAYBE,
    file=MAYBE,
    frozen=st.none() | st.booleans(),
    gc_since_unix_ns=st.none() | st.integers(0, 9),
    exiting=st.booleans(),
    children=st.none() | st.integers(0, 3),
)
THREADS = st.builds(ThreadStack, st.lists(FRAMES, max_size=3).map(tuple), main=st.booleans())
STACKS = st.none() | st.builds(
    Stacks,
    st.just("r"),
    st.just(1),
    st.just(7),
    st.integers(0, 9),
    st.sampled_from(["", "agent", "signal"]),
    st.lists(THREADS, max_size=2).map(tuple),
)


@given(
    st.builds(
        facts_of,
        st.sampled_from(State),
        place=PLACES,
        process=PROCESSES,
        stacks=STACKS,
        activity=MAYBE | st.sampled_from(["loader", "forward", "cuda_sync"]),
        working=st.none() | st.booleans(),
        cpu_ratio=st.none() | st.floats(0, 9),
        heard_unix_ns=st.none() | st.integers(0, 9),
        wakes_per_s=st.none() | st.floats(0, 900),
        line_age_s=st.none() | st.floats(0, 9),
        open_calls=st.lists(st.builds(OpenCall, TEXTS, st.just(1)), max_size=1).map(tuple),
        exit=st.none() | st.just(Exit(1, 7, 0, None, None, 0, "pidfd")),
    )
)
def test_no_combination_makes_it_raise_and_every_word_is_known(facts):
    found = does(facts)

    assert found.word in WORDS
    assert (activity_text(facts) is None) == (not found.text)
    assert where_text(facts)
    assert stack_lines(facts) is not None
    assert (process_line(facts) is None) == (facts.process.report is None)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (
            {"owner": "MyCallback", "framework": "lightning", "framework_call": "_call_hook"},
            "waiting for a lock (train.py:53 MyCallback.take, called by Lightning)",
        ),
        (
            {"framework": "lightning", "framework_call": "barrier", "framework_inside": True},
            "waiting for a lock (train.py:53 take, inside barrier of Lightning)",
        ),
    ],
)
def test_the_place_in_a_sentence_is_the_users_line_with_the_frameworks_call(more, text):
    assert where_text(rank(place=place(waits_on="lock", **more))) == text


def test_a_dump_of_a_method_belongs_to_the_place_of_that_method():
    """A dump has the function `MyCallback.take`, a report has `take`."""
    frame = StackFrame("MyCallback.take", "/home/ada/train.py", 53, True)
    stacks = Stacks("r1", 1, 4801, 200, "agent", (ThreadStack((frame,), main=True),))

    assert fresh_stacks(rank(stacks=stacks)) is stacks
