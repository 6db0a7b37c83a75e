from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtop.relay.processes import pyspy
from ddtop.relay.processes.pyspy import (
    FRAMES_MAX,
    THREADS_MAX,
    PySpy,
    explain,
    no_right,
    parse,
    threads,
)
from ddtop.wire.records import StackFrame, ThreadStack

PROGRAM = """
import select, sys, threading

def load_image():
    threading.Event().wait()

def count():
    print("ready", flush=True)
    while True:
        if select.select([sys.stdin], [], [], 0.01)[0]:
            print(sys.stdin.readline(), end="", flush=True)

threading.Thread(target=load_image, name="loader", daemon=True).start()
count()
"""
NEEDS_PY_SPY = pytest.mark.skipif(
    pyspy.find() is None, reason="py-spy is not installed: pip install 'ddtop[native]'"
)


@pytest.fixture(autouse=True)
def reaped() -> Iterator[None]:
    """A py-spy that was abandoned is not waited for, and here none may be left behind."""
    yield
    for process in pyspy._unreaped:
        process.wait(20)


@pytest.fixture
def target() -> Iterator[subprocess.Popen[str]]:
    """A Python that answers each line of its stdin, with a thread that waits."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def answers(process: subprocess.Popen[str]) -> bool:
    """It still runs: it echoes a line."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("still there\n")
    process.stdin.flush()
    return (
        bool(select.select([process.stdout], [], [], 20)[0])
        and process.stdout.readline() == "still there\n"
    )


def finished(spy: PySpy) -> tuple[ThreadStack, ...] | str:
    until = time.monotonic() + 30
    while (found := spy.poll()) is None:
        assert time.monotonic() < until
        time.sleep(0.005)
    return found


def stacks(spy: PySpy) -> tuple[ThreadStack, ...]:
    found = finished(spy)
    if isinstance(found, str):
        if found.startswith("no right"):
            pytest.skip(found)
        pytest.fail(found)
    return found


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


@NEEDS_PY_SPY
def test_a_process_without_an_agent_is_seen_and_goes_on(target: subprocess.Popen[str]) -> None:
    spy = PySpy(target.pid)
    main, loader = stacks(spy)

    assert (main.main, main.name, loader.main, loader.name) == (True, "MainThread", False, "loader")
    assert [frame.function for frame in main.frames][-2:] == ["count", "<module>"]
    assert "load_image" in [frame.function for frame in loader.frames]
    assert spy.note is None
    assert answers(target)


@NEEDS_PY_SPY
def test_native_frames_stand_below_the_python_ones(target: subprocess.Popen[str]) -> None:
    """Without a symbol the frame has the library's name, never an address."""
    main = stacks(PySpy(target.pid, native=True))[0]

    assert main.frames[0].file == "" or main.frames[0].line == 0
    assert not [frame for frame in main.frames if frame.function.startswith("0x")]
    assert answers(target)


@NEEDS_PY_SPY
@pytest.mark.parametrize("native", [False, True])
def test_a_stopped_process_is_read_and_stays_stopped(
    target: subprocess.Popen[str], native: bool
) -> None:
    """A person stopped it on purpose, and may be about to use a debugger."""
    os.kill(target.pid, signal.SIGSTOP)
    os.waitpid(target.pid, os.WUNTRACED)

    spy = PySpy(target.pid, native)
    main = stacks(spy)[0]

    assert state(target.pid) == "T"
    assert "count" in [frame.function for frame in main.frames]
    assert spy.note is not None
    assert ("without frames of C code" in spy.note) == native
    os.kill(target.pid, signal.SIGCONT)
    assert answers(target)


@NEEDS_PY_SPY
def test_a_running_process_can_be_read_without_a_pause(target: subprocess.Popen[str]) -> None:
    spy = PySpy(target.pid, nonblocking=True)

    assert stacks(spy)[0].main
    assert spy.note == "read without pausing the process"


@NEEDS_PY_SPY
def test_a_py_spy_that_is_given_up_leaves_its_target_running(target: subprocess.Popen[str]) -> None:
    for _ in range(20):
        spy = PySpy(target.pid, native=True)
        spy.kill()
        assert spy.poll() == f"py-spy did not finish with pid {target.pid} within 15 s"
        spy.kill()
    assert answers(target)


@NEEDS_PY_SPY
def test_a_process_that_is_gone_is_said_to_be_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()

    assert finished(PySpy(process.pid, native=True)) == f"pid {process.pid} is gone"


@NEEDS_PY_SPY
def test_a_process_that_is_not_python_is_named_as_such() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        found = finished(PySpy(process.pid))
    if str(found).startswith("no right"):
        pytest.skip(str(found))
    assert "does not look like Python" in str(found)


def test_without_py_spy_the_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))

    assert finished(PySpy(os.getpid())) == "py-spy is not installed: pip install 'ddtop[native]'"


def fake(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A py-spy of this test beside a Python of this test."""
    program = folder / "py-spy"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))


def test_where_native_frames_cannot_be_had_the_plain_ones_come_and_say_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Unwinding C fails on some builds ("Failed to merge native and python frames")."""
    fake(
        tmp_path,
        'case "$*" in *--native*) echo "Error: Failed to merge native and python frames" >&2; exit'
        ' 1;; esac\necho \'[{"frames": [{"name": "f", "filename": "a.py", "line": 3}],'
        ' "thread_name": "MainThread"}]\'',
        monkeypatch,
    )
    spy = PySpy(os.getpid(), native=True)

    assert stacks(spy) == (ThreadStack((StackFrame("f", "a.py", 3),), "MainThread", None, True),)
    assert spy.note is not None
    assert spy.note.startswith("without frames of C code: py-spy cannot read pid")
    assert "Failed to merge" in spy.note


def test_a_py_spy_that_takes_longer_than_its_deadline_is_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake(tmp_path, "exec sleep 60", monkeypatch)
    spy = PySpy(os.getpid(), deadline_s=0.2)

    assert finished(spy) == f"py-spy did not finish with pid {os.getpid()} within 0.2 s"


def test_output_without_end_is_cut_and_the_writer_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake(tmp_path, "exec head -c 9000000 /dev/zero", monkeypatch)

    assert "more than 4 MiB" in str(finished(PySpy(os.getpid())))


def test_no_right_names_the_command_that_would_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Yama's scope 1 is what Ubuntu and Debian start with."""
    scope = tmp_path / "ptrace_scope"
    monkeypatch.setattr(pyspy, "_YAMA", scope)
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    owner = Path("/proc/self").stat().st_uid
    assert (
        f"belongs to user id {owner}; `sudo py-spy dump --pid {os.getpid()}` would work"
        in no_right(os.getpid())
    )

    monkeypatch.setattr(os, "getuid", lambda: owner or 4711)
    monkeypatch.setattr(pyspy, "owner_of", lambda pid: owner or 4711)
    said = {}
    for number in (0, 1, 2, 3):
        scope.write_text(f"{number}\n")
        said[number] = no_right(os.getpid())
    assert "sudo py-spy dump" in said[1]
    assert "sysctl kernel.yama.ptrace_scope=0" in said[1]
    assert "sysctl" not in said[2]
    assert "sudo py-spy" in said[2]
    assert "sudo" not in said[3]
    assert "protected" in said[0]


def test_a_complaint_of_py_spy_becomes_one_sentence() -> None:
    pid = os.getpid()
    assert explain(pid, "Permission Denied: Try running again with elevated").startswith(
        f"no right to look into pid {pid}"
    )
    told = (
        "Error: Failed to get stack traces\n\nCaused by:\n    0: Failed to suspend process\n    1:"
        " unexpected\n"
    )
    assert (
        explain(pid, told)
        == f"py-spy cannot read pid {pid}: Failed to get stack traces (Failed to suspend process)"
    )
    assert "\n" not in explain(pid, "a\nb\nc")


def test_many_threads_and_deep_stacks_are_bounded_and_the_main_one_is_kept() -> None:
    frame = {"name": "f", "filename": "a.py", "line": 1}
    found = [{"frames": [frame], "thread_name": str(number)} for number in range(300)]
    found.append({"frames": [frame] * 200, "thread_name": "MainThread"})

    stacks = threads(dump_of(found), 1)

    assert len(stacks) == THREADS_MAX
    assert not isinstance(stacks, str)
    assert (stacks[0].main, len(stacks[0].frames)) == (True, FRAMES_MAX)
    assert stacks[0].omitted == 200 - FRAMES_MAX


def test_addresses_of_c_code_become_its_library() -> None:
    """Addresses differ from rank to rank, so no two ranks would be one class."""
    library = "/usr/lib/libcuda.so.1"
    names = ["0x7f01", "0x7f02", "cuCtxSynchronize", "0x7f03"]
    frames = [{"name": name, "filename": library, "line": 0, "module": library} for name in names]
    frames.insert(3, {"name": "step", "filename": "train.py", "line": 7})

    found = threads(dump_of([{"frames": frames}]), 1)

    assert not isinstance(found, str)
    assert [frame.function for frame in found[0].frames] == [
        "in libcuda.so.1",
        "cuCtxSynchronize",
        "step",
    ]
    assert [frame.file for frame in found[0].frames] == ["", "", "train.py"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.sampled_from(["frames", "name", "line", "filename", "x"]), inner)
    ),
)


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_whatever_py_spy_writes_is_stacks_or_a_sentence(output: bytes) -> None:
    found = parse(output, 1)

    assert isinstance(found, str) or isinstance(threads(found, 1), tuple)


def test_without_kernel_ids_the_thread_that_began_in_a_module_is_the_main_one():
    """Python 3.10, read without a pause: no thread has a name or a kernel id."""
    said = [
        {
            "frames": [
                {"name": "run", "filename": "a.py"},
                {"name": "_bootstrap", "filename": "threading.py"},
            ]
        },
        {"frames": [{"name": "f", "filename": "a.py"}, {"name": "<module>", "filename": "a.py"}]},
    ]

    found = pyspy.threads(dump_of(said), 4800)

    assert [(one.main, one.frames[0].function) for one in found] == [(True, "f"), (False, "run")]


def test_where_two_threads_began_in_a_module_none_is_the_main_one():
    said = [{"frames": [{"name": "<module>", "filename": "a.py"}]}] * 2

    assert [one.main for one in pyspy.threads(dump_of(said), 4800)] == [False, False]


def dump_of(said):
    """What py-spy wrote, as ddtop reads it."""
    return pyspy.parse(json.dumps(said).encode(), 4800)


def dumped(*frames):
    """py-spy's JSON of a main thread with these frames: (function, file, {name: text})."""
    return json.dumps([
        {
            "thread_name": "MainThread",
            "frames": [
                {
                    "name": name,
                    "filename": file,
                    "line": 7,
                    "locals": [
                        {"name": own, "repr": text, "arg": own != "secret"}
                        for own, text in variables.items()
                    ],
                }
                for name, file, variables in frames
            ],
        }
    ]).encode()  # fmt: skip


C10D = "/venv/torch/distributed/distributed_c10d.py"
USER = "/home/ada/train.py"


@pytest.mark.parametrize(
    ("frames", "call"),
    [
        ([("recv", C10D, {"src": "2", "group": "None"})], "recv(src=2, group=None)"),
        (
            [
                ("_get", C10D, {"group": "None"}),
                ("broadcast", C10D, {"group": "<torch.ProcessGroup at 0x7ffb3e>", "src": "0"}),
            ],
            "broadcast(group=object 0x7ffb3e, src=0)",
        ),
        (
            [("all_reduce", C10D, {"op": "<torch.RedOpType at 0x7f>", "tensor": '"hunter2"'})],
            "all_reduce()",
        ),
        ([("recv", C10D, {"src": '"' + "x" * 400 + '"'})], 'recv(src="' + "x" * 39 + ")"),
        ([("step", USER, {"group": "1", "src": '"hunter2"'})], None),
        ([("barrier", C10D, {"secret": "1"}), ("step", USER, {})], "barrier()"),
    ],
)
def test_of_variables_only_the_arguments_are_shown_that_say_whom_a_call_is_with(frames, call):
    assert pyspy.call_of(pyspy.parse(dumped(*frames), 4711), 4711) == call


def test_what_is_no_json_is_explained():
    assert "cannot read" in pyspy.parse(b"Error: ", 4711)


@NEEDS_PY_SPY
def test_arguments_are_read_without_pausing_the_process(tmp_path):
    """End to end, with a module at the path where torch's would be."""
    folder = tmp_path / "torch" / "distributed"
    folder.mkdir(parents=True)
    module = folder / "distributed_c10d.py"
    module.write_text(
        "import time\ndef recv(tensor, src=None, group=None):\n    print(1, flush=True)\n"
        "    time.sleep(60)\nrecv('hunter2', 3)\n"
    )
    with subprocess.Popen([sys.executable, str(module)], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        spy = PySpy(process.pid, nonblocking=True, arguments=True)
        found = finished(spy)
        process.kill()
    if isinstance(found, str) and "no right to look" in found:
        pytest.skip(found)

    assert spy.call == "recv(src=3, group=None)"
    assert "hunter2" not in str(found)


@NEEDS_PY_SPY
def test_it_says_whether_the_main_thread_slept(target: subprocess.Popen[str]) -> None:
    """The count that the target makes sleeps in select nearly all of the time."""
    spy = PySpy(target.pid, nonblocking=True)

    result = finished(spy)

    if isinstance(result, str):
        pytest.skip(result)
    assert isinstance(spy.asleep, bool)


def test_what_py_spy_does_not_say_of_the_main_thread_is_unknown() -> None:
    thread = {"thread_id": 1, "os_thread_id": 7, "frames": []}
    written = [thread | {"active": active} for active in (False, True, None)]

    assert [pyspy.asleep_in(dump_of([one]), 7) for one in written] == [True, False, None]


def test_the_kernels_id_of_a_thread_is_found_by_pythons() -> None:
    known = {"thread_id": 140_000, "os_thread_id": 7, "frames": []}
    unknown = {"thread_id": 140_001, "frames": []}

    assert pyspy.tids_in(dump_of([known, unknown])) == {140_000: 7}
