"""What a rank does, as one stable word and a short phrase, and where in the program it is.

The sources are used in the order of certainty: the process itself (stopped, exiting, in a garbage
collection), the library frames nearest to the user's own line, the kernel's word for a sleeping
thread, CPU time. The last report of a silent agent is old: only newer stacks, or the kernel, show
what such a rank does now.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ddtop.model.facts import RankFacts, State
from ddtop.model.kernel_wait import READS, WRITES, child_text, path_of, short, sleeps, wait_of
from ddtop.model.stacks import Owner, owner_of
from ddtop.policy import Limits
from ddtop.wire.mpi import is_outside
from ddtop.wire.names import P2P_CALLS, is_birth, word_of
from ddtop.wire.records import (
    StackFrame,
    Stacks,
    ThreadStack,
)
from ddtop.words.sentences import (
    COLLECTIVE,
    COMPUTES,
    P2P,
    WAITS,
    asked_text,
    file_line,
)


@dataclass(frozen=True)
class ShortSleeps(Limits, of="short-sleeps"):
    """A rank that sleeps nearly all the time, but each time only a little."""

    per_s: float = 1.5
    """A rank sleeps again and again if its main thread wakes this often. A request for stacks may
    wake it once, from one long sleep."""


WORDS = (
    "loader", "lock", "queue", "file", "socket", "pipe", "child", "stdin", "sleep", "python", "c",
    "compile", "import", "checkpoint-save", "checkpoint-load", "gc", "gil", "exit", "cuda-sync",
    "debugger", "collective", "p2p", "frozen", "stopped", "unknown", "rpc",
)  # fmt: skip
"""All words. JSON and evidence use them, so words are added but never removed."""

OTHER_WORLD = "other-world"
PROCESS, CALL, FRAMES, STACKS, KERNEL, CPU, NOTHING = (
    "process",
    "call",
    "frames",
    "stacks",
    "kernel",
    "cpu",
    "nothing",
)


@dataclass(frozen=True, slots=True)
class Does:
    """`word`: one of WORDS. `text` follows "is" or "has been": "waiting for a lock". `source`:
    where this is known from: the process, an open call, frames, stacks, the kernel, the CPU, or
    nothing.
    """

    word: str
    text: str
    source: str


_OF_FRAMES = {word: (one.word, one.phrase) for word, one in WAITS.items()}
_NOTHING = Does("unknown", "", NOTHING)
SHORT_SLEEPS = Does("sleep", "sleeping again and again", KERNEL)


def activity_text(facts: RankFacts) -> str | None:
    """A phrase that follows "is" or "has been". None if nothing is known, and for a process that
    has ended.
    """
    return does(facts).text or None


def does(facts: RankFacts) -> Does:
    """What the rank does now, as far as it is known."""
    if facts.gone:
        return _NOTHING
    if is_silent(facts):
        return (
            _certain_class(facts)
            or _of_gil(facts)
            or _of_stacks(facts)
            or _of_kernel(facts)
            or _of_cpu(facts)
            or _NOTHING
        )
    found = (
        _certain_class(facts)
        or _of_call(facts)
        or _of_frames(facts)
        or _of_kernel(facts)
        or _of_activity(facts)
    )
    return found or _of_stacks(facts) or _of_cpu(facts) or _NOTHING


def stack_line(stacks: Stacks, frames_max: int = 4) -> str | None:
    """`load data.py:40 ‹ step train.py:88 ‹ main train.py:120`: its main thread's own frames,
    innermost first, and what lies below them; None where no stack was taken. Without the frames of
    the parent that has forked it.
    """
    thread = _main(stacks)
    if thread is None:
        return None
    frames = thread.frames
    born = next(
        (at for at, frame in enumerate(frames) if is_birth(frame.function, frame.file)),
        len(frames),
    )
    return _frames_line(frames[:born], frames_max)


def other_threads(stacks: Stacks, threads_max: int = 3) -> list[str]:
    """The same for its other threads that run the program's code."""
    others = [thread for thread in stacks.threads if thread is not _main(stacks)]
    threads = [
        thread for thread in others if any(owner_of(frame) is Owner.USER for frame in thread.frames)
    ]
    return [
        line
        for thread in threads[:threads_max]
        if (line := _frames_line(thread.frames, 4)) is not None
    ]


def _frames_line(own: tuple[StackFrame, ...], frames_max: int) -> str | None:
    users = [frame for frame in own if owner_of(frame) is Owner.USER]
    frames = (users or [frame for frame in own if owner_of(frame) is not Owner.OWN])[:frames_max]
    return " ‹ ".join(f"{frame.function} {file_line(frame)}" for frame in frames) or None


def fresh_stacks(facts: RankFacts) -> Stacks | None:
    """The last dump, if the rank has made no progress since."""
    stacks = facts.dump.stacks
    if stacks is None or not stacks.method or facts.gone:
        return None
    if is_silent(facts):
        heard = facts.agent.heard_unix_ns
        return stacks if heard is None or stacks.taken_unix_ns >= heard else None
    place, user = facts.reported.place, user_frame(stacks)
    if (
        place is None
        or place.since_unix_ns is None
        or stacks.taken_unix_ns < place.since_unix_ns
        or user is None
    ):
        return None
    # A dump has the class before the function's name, a place has not.
    function = user.function.rpartition(".")[2]
    return stacks if (function, user.file) == (place.function, place.file) else None


def is_silent(facts: RankFacts) -> bool:
    """Whether its agent does not report."""
    return facts.state is State.SILENT


def _certain_class(facts: RankFacts) -> Does | None:
    process = facts.process.report
    if process is None:
        return None
    if process.frozen:
        return Does("frozen", "frozen by its cgroup", PROCESS)
    if process.state in ("T", "t"):
        return Does("stopped", "held by a debugger" if process.state == "t" else "stopped", PROCESS)
    leaves = process.exiting and facts.reported.waits_on != "exit"
    if leaves or process.became is not None:
        other = process.became and f"running another program, {process.became}"
        return Does("exit", other or "exiting the interpreter", PROCESS)
    if process.gc_since_unix_ns is not None:
        return Does("gc", "in a garbage collection", PROCESS)
    return None


def _of_call(facts: RankFacts) -> Does | None:
    """A call that the flight recorder does not record and that has not returned."""
    call = next(iter(facts.comm.open_calls), None)
    if call is None:
        return None
    if is_outside(call.group):
        return Does(OTHER_WORLD, f"in {call.name} with another MPI world", CALL)
    word = "p2p" if call.name in P2P_CALLS else "collective"
    return Does(word, f"in {call.name}", CALL)


def _of_frames(facts: RankFacts) -> Does | None:
    """What the library frames of the agent's last sample wait on."""
    place = facts.reported.place
    if place is None:
        return None
    waits_on = "DataLoader" if facts.reported.activity == "loader" else place.waits_on
    lock = place.waits_for or (place.polls if waits_on == "lock" else None)
    if lock is not None:
        return Does("lock", f"waiting for the lock file {short(lock)}", FRAMES)
    if waits_on == "collective" or (waits_on == "p2p" and place.callee in P2P_CALLS):
        return Does(waits_on, f"in {place.callee or 'a collective'}", FRAMES)
    # Another frame of "p2p" does not show whether it is send or recv; an open call would.
    if waits_on == "p2p" or waits_on not in _OF_FRAMES:
        return None
    found = Does(*_OF_FRAMES[waits_on], FRAMES)
    if place.asked is not None:
        return replace(found, text=f"{found.text}, waiting for {asked_text(place.asked)}")
    return _with_kernel_details(facts, found)


def does_at_report(facts: RankFacts) -> Does | None:
    """What it did at its last report."""
    return _of_call(facts) or _of_frames(facts) or _of_activity(facts)


def _of_activity(facts: RankFacts) -> Does | None:
    if facts.reported.place is None:
        return None
    if facts.reported.activity == "cuda_sync":
        return Does(*_OF_FRAMES["cuda-sync"], FRAMES)
    return (
        Does("python", f"in {facts.reported.activity}", FRAMES)
        if facts.reported.activity in COMPUTES and facts.reported.place.callee
        else None
    )


def _with_kernel_details(facts: RankFacts, classified: Does) -> Does:
    """The word of the frames, with the file or the child that the kernel adds."""
    process = facts.process.report
    if process is None or not sleeps(process):
        return classified
    text, path = classified.text, path_of(process)
    if classified.word == "child":
        text = child_text(process) or text
    elif classified.word == "socket" and (
        process.syscall == "connect" or process.remote is not None
    ):
        wait = wait_of(process)
        text = wait[1] if wait is not None else text
    elif classified.word == "file" and path is not None and (wait := wait_of(process)) is not None:
        return Does(*wait, FRAMES)
    elif path is not None and process.syscall in READS | WRITES:
        does = f"{'reading' if process.syscall in READS else 'writing'} {short(path)}"
        if classified.word in ("loader", "checkpoint-save", "checkpoint-load", "import"):
            text = f"{classified.text}, {does}"
    return replace(classified, text=text)


def waits_on(stacks: Stacks | None) -> str | None:
    """What the library frames below the program's innermost line wait on, as `Place.waits_on`."""
    thread = _main(stacks) if stacks is not None else None
    word = None
    for frame in thread.frames if thread is not None else ():
        owner = owner_of(frame)
        if owner is Owner.USER:
            break
        if owner is Owner.FRAMEWORK:
            word = word_of(frame.file, frame.function.rpartition(".")[2]) or word
    return word


def _of_stacks(facts: RankFacts) -> Does | None:
    """What the library frames of a fresh dump wait on."""
    word = waits_on(fresh_stacks(facts))
    if word in ("collective", "p2p"):
        return Does(word, (COLLECTIVE if word == "collective" else P2P).phrase, STACKS)
    return (
        _with_kernel_details(facts, Does(*_OF_FRAMES[word], STACKS)) if word in _OF_FRAMES else None
    )


def _of_gil(facts: RankFacts) -> Does | None:
    """For a silent rank: whether its main thread asks for the GIL again and again."""
    if (
        facts.process.report is None
        or facts.process.working is not False
        or (facts.process.wakes_per_s or 0.0) < facts.policy.gil_wakes_per_s
    ):
        return None
    # A sample may find it awake; then the kernel says nothing.
    wait = wait_of(facts.process.report)
    if wait is not None and wait[0] != "lock":
        return None
    return Does("gil", "waiting for the GIL, held by another thread", KERNEL)


def awaited_path(facts: RankFacts) -> str | None:
    """The lock file, file or named pipe that it waits for; None if that is not known."""
    place, process = facts.reported.place, facts.process.report
    if does(facts).word == "pipe":
        return path_of(process)
    return (place.waits_for if place is not None else None) or _polled_path(facts)


def _polled_path(facts: RankFacts) -> str | None:
    """The file for which it polls, asleep most of the time."""
    wakes = facts.process.wakes_per_s or 0.0
    idles = facts.process.working is False and wakes >= facts.policy.poll_wakes_per_s
    return facts.reported.place.polls if facts.reported.place is not None and idles else None


def _of_kernel(facts: RankFacts) -> Does | None:
    process = facts.process.report
    wait = wait_of(process) if process is not None else None
    if process is None or wait is None:
        return None
    # A thread that works also sleeps now and then. Of such a sleep only the file that it reads is
    # meaningful.
    if wait[0] == "sleep" and (path := _polled_path(facts)) is not None:
        return Does("sleep", f"polling for {short(path)}", KERNEL)
    if facts.process.working is False or (
        facts.process.working and wait[0] == "file" and path_of(process) is not None
    ):
        # Between two sleeps a look may find it where it waits for the GIL.
        again = wait[0] in ("sleep", "lock") and wakes_often(facts)
        return SHORT_SLEEPS if again else Does(*wait, KERNEL)
    return None


def wakes_often(facts: RankFacts) -> bool:
    """Whether its main thread has woken too often for one long sleep."""
    return (facts.process.wakes_per_s or 0.0) >= facts.policy.of(ShortSleeps).per_s


def _of_cpu(facts: RankFacts) -> Does | None:
    process = facts.process.report
    if not facts.process.working or facts.process.cpu_ratio is None or process is None:
        return None
    # Its work may also be that of its children, or I/O: then its main thread sleeps.
    if process.state != "R" and (
        process.children or facts.process.cpu_ratio < facts.policy.busy_ratio
    ):
        return None
    if is_silent(facts):
        return Does("c", "computing in C", CPU)
    if facts.reported.place is None:
        return None
    if (facts.reported.line_age_s or 0.0) >= facts.policy.same_line_s:
        return Does("c", "computing at the same line (a call into C, or a one-line loop)", CPU)
    return Does("python", f"computing in {facts.reported.place.callee or 'Python'}", CPU)


def _main(stacks: Stacks) -> ThreadStack | None:
    """The main thread; if the source does not mark it, the only thread."""
    marked = next((thread for thread in stacks.threads if thread.main), None)
    return marked or (stacks.threads[0] if len(stacks.threads) == 1 else None)


def user_frame(stacks: Stacks) -> StackFrame | None:
    """The innermost frame of the program's own code in its main thread."""
    thread = _main(stacks)
    return _user_frame(thread) if thread is not None else None


def gil_holder(stacks: Stacks) -> tuple[str, StackFrame] | None:
    """The other thread that had the GIL when the stacks were taken: its name, and its innermost
    frame of the program's own code."""
    others = (thread for thread in stacks.threads if thread.has_gil and not thread.main)
    found = ((thread.name or "?", frame) for thread in others if (frame := _user_frame(thread)))
    return next(found, None)


def _user_frame(thread: ThreadStack) -> StackFrame | None:
    return next((frame for frame in thread.frames if owner_of(frame) is Owner.USER), None)
