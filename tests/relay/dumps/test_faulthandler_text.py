from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtop.relay.dumps.signal import COLLECTING, FRAMES_MAX, WRITTEN_THREADS_MAX, is_complete, parse
from ddtop.wire.records import StackFrame

TWO = b"""\
Thread 0x00007f10 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/data/train \\xe9.py", line 12 in load_image

Current thread 0x00007f20 (most recent call first):
  File "/data/train.py", line 40 in step
  File "/data/train.py", line 77 in <module>
"""
NAMED = b"""\
Thread 0x00007f10 [pt_data_worker] (most recent call first):
  <no Python frame>

Thread 0x00007f20 [python [x]] (most recent call first):
  Garbage-collecting
  File "/data/train.py", line 77 in <module>
"""


def test_the_thread_listed_last_is_the_main_one() -> None:
    """CPython lists its newest threads first."""
    worker, main = parse(TWO)

    assert [worker.main, main.main] == [False, True]
    assert [worker.thread_id, main.thread_id] == [0x7F10, 0x7F20]
    assert (
        StackFrame("step", "/data/train.py", 40),
        StackFrame("<module>", "/data/train.py", 77),
    ) == main.frames


def test_escaped_characters_are_the_characters() -> None:
    """It writes ASCII only; a backslash of the path itself is no escape."""
    assert parse(TWO)[0].frames[1].file == "/data/train é.py"
    lines = (
        b'Thread 0x1 (most recent call first):\n  File "a\\x41\\u20ac\\U0001f600\\udc80", line 1'
        b" in f\n"
    )
    assert parse(lines)[0].frames[0].file == "a\\x41€😀\\udc80"


def test_names_and_collections_of_newer_pythons_are_read() -> None:
    worker, main = parse(NAMED)

    assert [worker.name, main.name] == ["pt_data_worker", "python [x]"]
    assert worker.frames == ()
    assert [frame.function for frame in main.frames] == [COLLECTING, "<module>"]


def test_a_deep_stack_says_that_frames_are_missing() -> None:
    """faulthandler writes the 100 innermost frames and three dots."""
    text = (
        "Thread 0x1 (most recent call first):\n"
        + '  File "a.py", line 3 in deep\n' * 100
        + "  ...\n"
    )

    (thread,) = parse(text)

    assert (len(thread.frames), thread.omitted) == (100, 1)
    assert is_complete(text.encode())


def test_a_deep_stack_of_newer_pythons_ends_without_a_word() -> None:
    """From 3.13 on the three dots are missing: it would never count as complete."""
    text = "Thread 0x1 (most recent call first):\n" + '  File "a.py", line 3 in deep\n' * 99
    assert not is_complete(text.encode())

    deep = text + '  File "a.py", line 3 in deep\n'
    whole = text + '  File "a.py", line 9 in <module>\n'

    assert (parse(deep)[0].omitted, parse(whole)[0].omitted) == (1, 0)
    assert is_complete(deep.encode())
    assert is_complete(whole.encode())


def test_a_lost_list_of_threads_ends_the_text_and_leaves_no_main_one() -> None:
    text = TWO + b"\n<freed thread state>\n"

    assert [thread.main for thread in parse(text)] == [False, False]
    assert is_complete(text)


def test_where_threads_are_left_out_none_is_called_main() -> None:
    """Of more than a hundred threads the main one is never written."""
    text = TWO + b"\n...\n"

    assert [thread.main for thread in parse(text)] == [False, False]
    assert is_complete(text)


def test_a_text_cut_before_the_main_thread_does_not_call_another_main() -> None:
    """A rank that is killed while it writes leaves an incomplete text."""
    worker = (
        'Thread 0x1 (most recent call first):\n  File "t.py", line 9 in run\n  File "threading.py",'
        " line 1 in _bootstrap\n"
    )

    assert not parse(worker)[0].main
    assert not parse(TWO[:-1])[-1].main


def test_unknown_file_line_and_name_do_not_lose_the_frame() -> None:
    (thread,) = parse("Thread 0x1 (most recent call first):\n  File ???, line ??? in ???\n")

    assert (StackFrame("???", "???", 0),) == thread.frames


def test_a_path_that_looks_like_a_frame_stays_a_path() -> None:
    (thread,) = parse(
        'Thread 0x1 (most recent call first):\n  File "/a", line 3 in b", line 7 in f\n'
    )

    assert (StackFrame("f", '/a", line 3 in b', 7),) == thread.frames


@pytest.mark.parametrize("text", [TWO, NAMED])
def test_a_text_cut_anywhere_gives_the_frames_that_are_whole(text: bytes) -> None:
    """The relay reads while the rank writes."""
    whole = parse(text)
    for end in range(len(text)):
        part = parse(text[:end])
        assert [thread.frames for thread in part] == [
            expected.frames[: len(thread.frames)]
            for thread, expected in zip(part, whole, strict=False)
        ]
        assert not is_complete(text[:end]) or text[:end].endswith(b">\n")
    assert is_complete(text)


def test_a_main_thread_that_is_not_at_its_module_yet_is_not_whole() -> None:
    assert not is_complete(TWO[: TWO.index(b'  File "/data/train.py", line 77')])
    assert not is_complete(b"")
    assert not is_complete(b"Thread 0x1 (most recent call first):\n")


def test_threads_and_frames_are_bounded_and_the_main_thread_is_kept() -> None:
    one = 'Thread 0x{:x} (most recent call first):\n  File "a.py", line 1 in f\n\n'
    threads = parse("".join(one.format(number) for number in range(400)))
    assert (len(threads), threads[-1].thread_id) == (WRITTEN_THREADS_MAX, 399)
    assert threads[-1].main is True

    (deep,) = parse(
        "Thread 0x1 (most recent call first):\n" + '  File "a.py", line 3 in deep\n' * 300
    )
    assert (len(deep.frames), deep.omitted) == (FRAMES_MAX, 300 - FRAMES_MAX)


@given(st.binary() | st.text(st.characters()).map(lambda text: text.encode("utf-8", "replace")))
def test_any_bytes_are_read_without_an_error(data: bytes) -> None:
    assert len(parse(data)) <= WRITTEN_THREADS_MAX
    is_complete(data)


PIECES = [
    b"Thread 0x1 (most recent call first):",
    b"\n",
    b"  File ",
    b'"a"',
    b", line ",
    b"9" * 40,
    b" in ",
    b"f",
    b"  ...",
    b"...",
    b"\\x",
    b"\\udc80",
    b"\\U00110000",
    b"\xff",
    b"  <x>",
    b"  Garbage-collecting",
    b"\r",
    b"\x85",
]


@given(st.lists(st.sampled_from(PIECES)))
def test_pieces_of_the_format_in_any_order_give_sendable_stacks(pieces: list[bytes]) -> None:
    for thread in parse(b"".join(pieces)):
        assert len(thread.frames) <= FRAMES_MAX
        for frame in thread.frames:
            frame.file.encode()
            frame.function.encode()
            assert 0 <= frame.line < 2**31


@given(st.text(max_size=300))
def test_any_text_that_is_not_bytes_is_read_alike(text: str) -> None:
    assert parse(text) == parse(text.encode())


REAL = """
import faulthandler, sys, threading
ready, go = threading.Event(), threading.Event()
def wait_for_go():
    ready.set()
    go.wait()
def main():
    thread = threading.Thread(target=wait_for_go)
    thread.start()
    ready.wait()
    faulthandler.dump_traceback(file=sys.stdout, all_threads=True)
    print(thread.ident, threading.main_thread().ident, file=sys.stderr)
    go.set()
main()
"""


def test_what_this_python_writes_is_read() -> None:
    """The real thing: a thread that waits, then the main thread, and their functions by name."""
    done = subprocess.run([sys.executable, "-c", REAL], capture_output=True, check=True)
    waiting, main = (int(word) for word in done.stderr.split())

    stacks = parse(done.stdout)

    assert [stack.thread_id for stack in stacks] == [waiting, main]
    assert "wait_for_go" in [frame.function for frame in stacks[0].frames]
    assert "main" in [frame.function for frame in stacks[1].frames]
