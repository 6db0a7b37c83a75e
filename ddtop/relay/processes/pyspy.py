"""py-spy reads the stacks of a process that has no agent, or a silent one. No call here blocks.

py-spy stops its target for some milliseconds while it reads, which can end a system call.
`--nonblocking` only reads its memory (process_vm_readv, no ptrace), and may then read a stack that
never was. Since 0.4 it stops the target with PTRACE_SEIZE, so a py-spy that is killed leaves its
target running. Older ones send a SIGSTOP that would stay; hence the version in the extra.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec

from ddtop.procfs import owner_of, stat_fields, status, status_of
from ddtop.redaction import redact
from ddtop.wire.records import StackFrame, ThreadStack
from ddtop.wire.truncation import fit_threads

DEADLINE_S = 15.0
"""Reading symbols of a big CUDA build takes seconds."""
OUTPUT_MAX_BYTES = 4 << 20
"""Limit of py-spy's JSON: a hundred threads of a hundred frames take 2 MiB."""
THREADS_MAX, FRAMES_MAX = 256, 128
TEXT_MAX = 1000
ARGUMENTS = frozenset({
    "async_op", "dst", "group", "group_dst", "group_name", "group_src", "op", "src", "tag",
})  # fmt: skip
"""Arguments of torch.distributed that say whom a call is with. Tensors and objects are none."""
LOCALS_MAX, ARGUMENT_MAX, CALL_MAX = 64, 40, 200
_COMMUNICATES = ("torch/distributed/distributed_c10d.py", "distributed/_functional_collectives.py")
_OBJECT = re.compile(r"<[\w.]+ at (0x[0-9a-f]+)>")
NOT_INSTALLED = "py-spy is not installed: pip install 'ddtop[native]'"
_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
_CAP_SYS_PTRACE = 1 << 19
_unreaped: list[subprocess.Popen[bytes]] = []


class _Local(msgspec.Struct):
    name: str
    repr: str | None = None
    arg: bool = False


class _Frame(msgspec.Struct):
    name: str
    filename: str = ""
    line: int = 0
    module: str | None = None
    locals: list[_Local] | None = None


class _Thread(msgspec.Struct):
    frames: list[_Frame]
    thread_id: int | None = None
    thread_name: str | None = None
    os_thread_id: int | None = None
    active: bool | None = None
    owns_gil: bool = False


class PySpy:
    """One dump of one process, begun at once.

    `native` also asks for the frames of C code; `nonblocking` never pauses the process, and then
    there are none. A stopped process is always read that way, and stays stopped. `note` says, once
    the stacks are there, how they are less than what was asked for. Not for several threads.

    It is given up `deadline_s` after its begin, by the next `poll`.

    `arguments`: also fill in `call` (see `call_of`), for which py-spy reads all variables.
    `asleep`: whether the main thread slept when its frames were read. `tids`: the kernel's id of
    each thread by Python's id, where py-spy knows it.
    """

    def __init__(
        self,
        pid: int,
        native: bool = False,
        nonblocking: bool = False,
        arguments: bool = False,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self.pid, self._deadline_s = pid, deadline_s
        self._until = time.monotonic() + deadline_s
        self.note: str | None = None
        self.call: str | None = None
        self.asleep: bool | None = None
        self.tids: dict[int, int] = {}
        self._argument_lists = _argument_lists(pid, native, nonblocking)
        if arguments:
            self._argument_lists.insert(0, ("--locals", *self._argument_lists[0]))
        self._asked_native = native
        self._process: subprocess.Popen[bytes] | None = None
        self._output = self._errors = -1
        self._first_error: str | None = None
        self._result: tuple[ThreadStack, ...] | str | None = None
        self._start()

    def poll(self) -> tuple[ThreadStack, ...] | str | None:
        """The threads, or a sentence that says why there are none, or None while py-spy is at work.

        It never waits.
        """
        if self._result is None:
            self._look()
            if self._result is None and time.monotonic() > self._until:
                self.kill()
        return self._result

    def _look(self) -> None:
        if self._process is None and not self._take_started():
            return
        assert self._process is not None
        code = self._process.poll()
        if code is not None:
            self._finish(code)
        elif os.fstat(self._output).st_size > OUTPUT_MAX_BYTES:
            self.kill()
            self._result = (
                f"py-spy wrote more than {OUTPUT_MAX_BYTES >> 20} MiB about pid {self.pid}"
            )

    def kill(self) -> None:
        """End py-spy if it still runs. Does not wait for its end.

        A py-spy that reads from a process in state D may take long.
        """
        if self._result is None:
            self._start_of.give_up()
            self._take_started()
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            _unreaped.append(self._process)
        self._close()
        if self._result is None:
            self._result = (
                f"py-spy did not finish with pid {self.pid} within {self._deadline_s:g} s"
            )

    def _start(self) -> None:
        _unreaped[:] = [process for process in _unreaped if process.poll() is None]
        self._start_of = _Start(
            ["dump", "--json", *self._argument_lists[0], "--pid", str(self.pid)]
        )

    def _take_started(self) -> bool:
        """Whether py-spy runs by now; where it could not be started, the result says why."""
        started = self._start_of.take()
        if isinstance(started, str):
            self._result = started
        elif started is not None:
            self._process, self._output, self._errors = started
        return self._process is not None

    def _finish(self, code: int) -> None:
        output, errors = (
            _content(self._output),
            _content(self._errors)[:65536].decode(errors="replace"),
        )
        self._close()
        found = (
            parse(output, self.pid)
            if code == 0
            else explain(self.pid, errors or f"it ended with code {code}")
        )
        way = self._argument_lists.pop(0)
        if not isinstance(found, str):
            self._result, self.note = threads(found, self.pid), self._missing_text(way)
            self.call = call_of(found, self.pid) if "--locals" in way else None
            self.asleep = asleep_in(found, self.pid)
            self.tids = tids_in(found)
            return
        if self._first_error is None:
            self._first_error = found
        if self._argument_lists and not _is_final(self.pid):
            self._start()
        else:
            self._result = self._first_error

    def _missing_text(self, way: tuple[str, ...]) -> str | None:
        words = []
        if self._asked_native and "--native" not in way:
            why = f": {self._first_error}" if self._first_error else " (it cannot be paused)"
            words.append(f"without frames of C code{why}")
        if "--nonblocking" in way:
            words.append("read without pausing the process")
        return "; ".join(words) or None

    def _close(self) -> None:
        for descriptor in (self._output, self._errors):
            if descriptor >= 0:
                os.close(descriptor)
        self._output = self._errors = -1
        self._process = None


class _Start:
    """Starts one py-spy, on a thread of its own.

    The program may lie on a file server that hangs, and starting it would hang too.
    """

    def __init__(self, arguments: list[str]) -> None:
        self._arguments = arguments
        self._lock = threading.Lock()
        self._given_up = False
        self._started: tuple[subprocess.Popen[bytes], int, int] | str | None = None
        try:
            threading.Thread(target=self._run, name="ddtop-py-spy", daemon=True).start()
        except RuntimeError as error:
            self._started = f"py-spy cannot be started: {error}"

    def take(self) -> tuple[subprocess.Popen[bytes], int, int] | str | None:
        """The process, and the descriptors of its output and errors. The caller closes them.

        A sentence if it could not be started. None while it is being started, and after it was
        taken.
        """
        with self._lock:
            started, self._started = self._started, None
            return started

    def give_up(self) -> None:
        """Nobody will take this py-spy: if it is still being started, end it then."""
        with self._lock:
            self._given_up = True

    def _run(self) -> None:
        output = errors = -1
        found: tuple[subprocess.Popen[bytes], int, int] | str
        try:
            program = find()
            if program is None:
                raise FileNotFoundError(NOT_INSTALLED)
            # Memory and not a pipe: a py-spy that has to wait for its reader, or a full /tmp, would
            # be one more thing that hangs.
            output, errors = os.memfd_create("ddtop-py-spy"), os.memfd_create("ddtop-py-spy-errors")
            process = subprocess.Popen(
                [program, *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
            found = process, output, errors
        except Exception as error:  # noqa: BLE001 - the end of the thread: the waiting code gets it
            for descriptor in (output, errors):
                if descriptor >= 0:
                    os.close(descriptor)
            found = (
                NOT_INSTALLED
                if str(error) == NOT_INSTALLED
                else f"py-spy cannot be started: {error}"
            )
        with self._lock:
            if not self._given_up or isinstance(found, str):
                self._started = found
                return
        process.kill()
        _unreaped.append(process)
        os.close(output)
        os.close(errors)


def find() -> str | None:
    """The py-spy of this Python's environment, else the first on PATH; None without one."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


def parse(output: bytes, pid: int) -> list[_Thread] | str:
    """py-spy's JSON; a sentence if it is none."""
    if len(output) > OUTPUT_MAX_BYTES:
        return f"py-spy wrote more than {OUTPUT_MAX_BYTES >> 20} MiB about pid {pid}"
    try:
        return msgspec.json.decode(output, type=list[_Thread])
    except (msgspec.DecodeError, RecursionError) as error:
        return f"py-spy wrote what this ddtop cannot read ({error})"


def threads(found: list[_Thread], pid: int) -> tuple[ThreadStack, ...]:
    """The threads as stacks."""
    # The main thread must not be the one that is left out.
    main = _main_of(found, pid)
    ordered = sorted(found, key=lambda thread: thread is not main)
    return fit_threads(tuple(_stack(thread, thread is main) for thread in ordered[:THREADS_MAX]))


def asleep_in(found: list[_Thread], pid: int) -> bool | None:
    """Whether the main thread sleeps in this dump; None where py-spy does not say."""
    main = _main_of(found, pid)
    return not main.active if main is not None and main.active is not None else None


def tids_in(found: list[_Thread]) -> dict[int, int]:
    """The kernel's id of each thread by Python's id."""
    known = ((thread.thread_id, thread.os_thread_id) for thread in found)
    return {thread: tid for thread, tid in known if thread is not None and tid is not None}


def call_of(found: list[_Thread], pid: int) -> str | None:
    """The call of torch.distributed that the main thread is in, with those of its arguments that
    say whom it is with: `broadcast(src=0, group=None)`. None where it is in none.

    Of all variables that py-spy read only the arguments in `ARGUMENTS` are looked at.
    """
    main = _main_of(found, pid)
    for frame in main.frames if main is not None else ():
        if not frame.filename.endswith(_COMMUNICATES) or frame.name.startswith("_"):
            continue
        shown = [
            text
            for local in (frame.locals or ())[:LOCALS_MAX]
            if local.arg and (text := _argument(local)) is not None
        ]
        return f"{frame.name[:TEXT_MAX]}({', '.join(shown)})"[:CALL_MAX]
    return None


def _argument(local: _Local) -> str | None:
    if local.name not in ARGUMENTS or local.repr is None:
        return None
    text = redact(local.repr)
    if (match := _OBJECT.fullmatch(text)) is not None:
        # Of an enumeration or an options object its address says nothing.
        text = f"object {match[1]}" if "group" in local.name else ""
    return f"{local.name}={text[:ARGUMENT_MAX]}" if text.isprintable() and text else None


def explain(pid: int, errors: str) -> str:
    """What py-spy's complaint means, as a sentence with the next step.

    It asks the process itself once more, because py-spy says "check that it runs" also if only the
    right to read is missing.
    """
    if owner_of(pid) is None:
        return f"pid {pid} is gone"
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    text = lines[0] if lines else "it does not say why"
    if (
        "ermission denied" in errors.lower()
        or "not permitted" in errors.lower()
        or not _is_readable(pid)
    ):
        return no_right(pid)
    if "Failed to find python version" in errors or "Failed to open process" in errors:
        return f"pid {pid} does not look like Python to py-spy, or is of a version it does not know"
    cause = next((line.partition(": ")[2] for line in lines[1:] if line[:1].isdigit()), "")
    why = text.removeprefix("Error: ") + (f" ({cause})" if cause else "")
    return f"py-spy cannot read pid {pid}: {why}"[:500]


def no_right(pid: int) -> str:
    """Why this process may not be traced by this user, and the command that would work."""
    if (user := owner_of(pid)) is None:
        return f"pid {pid} is gone"
    if os.getuid() not in (0, user):
        why, root = f"it belongs to user id {user}", "would work"
    elif (scope := yama_scope()) == 3:
        off = "tracing is off until the next boot (kernel.yama.ptrace_scope = 3)"
        return f"no right to look into pid {pid}: {off}"
    elif os.getuid() == 0:
        why = (
            "this root lacks CAP_SYS_PTRACE, as in a container (start it with --cap-add SYS_PTRACE)"
        )
        root = "on the host would work"
    elif scope == 2:
        why, root = "only root may (kernel.yama.ptrace_scope = 2)", "would work"
    elif scope == 1:
        why = "only its parents may (kernel.yama.ptrace_scope = 1)"
        root = "would work, or `sudo sysctl kernel.yama.ptrace_scope=0` for all processes"
    else:
        why, root = "it is protected (a set-uid program, or a container's rules)", "may work"
    return f"no right to look into pid {pid}: {why}; `sudo py-spy dump --pid {pid}` {root}"


def yama_scope() -> int | None:
    """kernel.yama.ptrace_scope: 0 as ever, 1 parents only, 2 root only, 3 nobody.

    None on a kernel without Yama.
    """
    try:
        return int(_YAMA.read_text())
    except (OSError, ValueError):
        return None


def may_trace_others() -> bool:
    """This process has CAP_SYS_PTRACE. Check: `grep CapEff /proc/self/status`."""
    return bool(int(status_of(status("self"), "CapEff") or "0", 16) & _CAP_SYS_PTRACE)


def _argument_lists(pid: int, native: bool, nonblocking: bool) -> list[tuple[str, ...]]:
    """Arguments to try, best first."""
    if nonblocking or _state(pid) in ("T", "t"):
        # Twice: what is read from a running process can be torn.
        return [("--nonblocking",), ("--nonblocking",)]
    return [("--native",), (), ("--nonblocking",)] if native else [(), ("--nonblocking",)]


def _state(pid: int) -> str:
    fields = stat_fields(pid)
    return fields[0] if fields is not None else ""


def _is_readable(pid: int) -> bool:
    try:
        Path(f"/proc/{pid}/exe").readlink()
    except PermissionError:
        return False
    except OSError:
        return True
    return True


def _is_final(pid: int) -> bool:
    """Whether other arguments would not change the answer."""
    return _state(pid) in ("", "Z", "X") or not _is_readable(pid)


def _content(descriptor: int) -> bytes:
    return os.pread(descriptor, OUTPUT_MAX_BYTES + 1, 0)


def _main_of(found: list[_Thread], pid: int) -> _Thread | None:
    """The main thread. Before 3.11 the thread state has no kernel id, and without pausing the
    process py-spy knows none: then it is the only thread whose outermost frame is a module's.
    """
    for thread in found:
        if thread.os_thread_id == pid or thread.thread_name == "MainThread":
            return thread
    if any(thread.os_thread_id is not None for thread in found):
        return None
    modules = [thread for thread in found if thread.frames and thread.frames[-1].name == "<module>"]
    return modules[0] if len(modules) == 1 else None


def _stack(thread: _Thread, main: bool) -> ThreadStack:
    frames: list[StackFrame] = []
    for each in thread.frames:
        frame = _frame(each)
        if not (
            frames and not frame.file and frame == frames[-1] and frame.function.startswith("in ")
        ):
            frames.append(frame)
    # What started the thread, in C without a name, says nothing.
    while frames and not frames[-1].file and frames[-1].function.startswith("in "):
        frames.pop()
    return ThreadStack(
        frames=tuple(frames[:FRAMES_MAX]),
        name=thread.thread_name[:TEXT_MAX] if thread.thread_name else None,
        thread_id=thread.thread_id,
        main=main,
        omitted=max(0, len(frames) - FRAMES_MAX),
        has_gil=thread.owns_gil,
    )


def _frame(frame: _Frame) -> StackFrame:
    """The frame as a record. A frame of C code is named by its function.

    Without a function it is named by its library, because addresses differ from rank to rank.
    """
    line = frame.line if 0 <= frame.line < 2**31 else 0
    if frame.module is None:
        return StackFrame(frame.name[:TEXT_MAX], frame.filename[:TEXT_MAX], line)
    name = frame.name[:TEXT_MAX]
    if name.startswith("0x"):
        name = "in " + frame.module.rpartition("/")[2][:TEXT_MAX]
    has_source = line > 0 and frame.filename != frame.module
    return StackFrame(
        name, frame.filename[:TEXT_MAX] if has_source else "", line if has_source else 0
    )
