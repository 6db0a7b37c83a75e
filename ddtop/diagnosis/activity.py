"""What a rank does, as one stable word and a short phrase, and where in the program it is.

The sources are used in the order of certainty: the process itself (stopped, exiting, in a garbage
collection), the library frames nearest to the user's own line, the kernel's word for a sleeping
thread, CPU time. The last report of a silent agent is old: only newer stacks, or the kernel, show
what such a rank does now.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ddtop.diagnosis.kernel_wait import READS, WRITES, child_text, path_of, short, sleeps, wait_of
from ddtop.model.facts import RankFacts, State
from ddtop.model.stacks import Owner, is_birth, owner_of
from ddtop.policy import Limits, Policy
from ddtop.wire.mpi import is_outside
from ddtop.wire.names import P2P_CALLS, word_of
from ddtop.wire.records import (
    CHECKPOINT,
    COMPILE,
    SANITY_CHECK,
    TEST,
    VALIDATE,
    StackFrame,
    Stacks,
    ThreadStack,
    TrainingProgress,
)
from ddtop.words.sentences import (
    COLLECTIVE,
    COMPUTES,
    P2P,
    WAITS,
    asked_text,
    file_line,
    framework_text,
    function_text,
    phase_text,
)
from ddtop.words.units import duration


@dataclass(frozen=True)
class PhaseLimits(Limits, of="phase", was="phase_"):
    """How long a checkpoint, a validation or a compilation may last."""

    overdue_factor: float = 3.0
    """A rank that saves a checkpoint, validates or compiles and works is a warning up to this many
    times the longest such phase so far. A checkpoint of twice the usual length is a busy server."""
    still_limit_s: float = 20.0
    """A rank in such a phase that uses no CPU and does no I/O is a warning until then. An upload
    to an object store waits for its answer this long."""
    usual_factor: float = 1.2
    """... or this many times the longest such phase so far, whichever is later: it may have been
    waiting for the store each time."""


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
class Classified:
    """`word`: one of WORDS. `text` follows "is" or "has been": "waiting for a lock". `source`:
    where this is known from: the process, an open call, frames, stacks, the kernel, the CPU, or
    nothing.
    """

    word: str
    text: str
    source: str


_OF_FRAMES = {word: (one.word, one.phrase) for word, one in WAITS.items()}
_NOTHING = Classified("unknown", "", NOTHING)
SHORT_SLEEPS = Classified("sleep", "sleeping again and again", KERNEL)


def activity_text(facts: RankFacts, policy: Policy) -> str | None:
    """A phrase that follows "is" or "has been". None if nothing is known, and for a process that
    has ended.
    """
    return classify(facts, policy).text or None


def classify(facts: RankFacts, policy: Policy) -> Classified:
    """What the rank does now, as far as it is known."""
    if facts.gone:
        return _NOTHING
    if _is_silent(facts):
        return (
            _certain_class(facts)
            or _of_gil(facts, policy)
            or _of_stacks(facts)
            or _of_kernel(facts, policy)
            or _of_cpu(facts, policy)
            or _NOTHING
        )
    found = (
        _certain_class(facts)
        or _of_call(facts)
        or _of_frames(facts)
        or _of_kernel(facts, policy)
        or _of_activity(facts)
    )
    return found or _of_stacks(facts) or _of_cpu(facts, policy) or _NOTHING


def where_text(facts: RankFacts, policy: Policy) -> str:
    """Where a rank is, to follow "has been" or "is": `in the DataLoader (data.py:40 load_image)`.

    For a silent rank without stacks: where its last report found it.
    """
    classified = classify(facts, policy)
    if classified.source in (STACKS, KERNEL, CPU, NOTHING) and _is_silent(facts):
        return _in_c(facts, classified)
    place = facts.reported.place
    if place is None:
        return (
            classified.text
            if classified.text and classified.source != CPU
            else "at a place that cannot be seen"
        )
    around = framework_text(place)
    spot = f"in {function_text(place)} ({file_line(place)}{around})"
    if classified.source in (CPU, NOTHING):
        return spot
    if classified.source == KERNEL:
        return f"{classified.text} {spot}"
    return f"{classified.text} ({file_line(place)} {function_text(place)}{around})"


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
    if _is_silent(facts):
        heard = facts.agent.heard_unix_ns
        return stacks if heard is None or stacks.taken_unix_ns >= heard else None
    place, user = facts.reported.place, _user_frame(stacks)
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


def _is_silent(facts: RankFacts) -> bool:
    return facts.state is State.SILENT


def _certain_class(facts: RankFacts) -> Classified | None:
    process, place = facts.process.report, facts.reported.place
    if process is None:
        return None
    if process.frozen:
        return Classified("frozen", "frozen by its cgroup", PROCESS)
    if process.state in ("T", "t"):
        return Classified(
            "stopped", "held by a debugger" if process.state == "t" else "stopped", PROCESS
        )
    leaves = process.exiting and not (place is not None and place.waits_on == "exit")
    if leaves or process.became is not None:
        other = process.became and f"running another program, {process.became}"
        return Classified("exit", other or "exiting the interpreter", PROCESS)
    if process.gc_since_unix_ns is not None:
        return Classified("gc", "in a garbage collection", PROCESS)
    return None


def _of_call(facts: RankFacts) -> Classified | None:
    """A call that the flight recorder does not record and that has not returned."""
    call = next(iter(facts.comm.open_calls), None)
    if call is None:
        return None
    if is_outside(call.group):
        return Classified(OTHER_WORLD, f"in {call.name} with another MPI world", CALL)
    word = "p2p" if call.name in P2P_CALLS else "collective"
    return Classified(word, f"in {call.name}", CALL)


def _of_frames(facts: RankFacts) -> Classified | None:
    """What the library frames of the agent's last sample wait on."""
    place = facts.reported.place
    if place is None:
        return None
    waits_on = "DataLoader" if facts.reported.activity == "loader" else place.waits_on
    lock = place.waits_for or (place.polls if waits_on == "lock" else None)
    if lock is not None:
        return Classified("lock", f"waiting for the lock file {short(lock)}", FRAMES)
    if waits_on in ("collective", "p2p"):
        # A frame does not show whether it is send or recv; an open call would.
        return (
            Classified("collective", f"in {place.callee or 'a collective'}", FRAMES)
            if waits_on == "collective"
            else None
        )
    if waits_on not in _OF_FRAMES:
        return None
    found = Classified(*_OF_FRAMES[waits_on], FRAMES)
    if place.asked is not None:
        return replace(found, text=f"{found.text}, waiting for {asked_text(place.asked)}")
    return _with_kernel_details(facts, found)


def _of_activity(facts: RankFacts) -> Classified | None:
    if facts.reported.place is None:
        return None
    if facts.reported.activity == "cuda_sync":
        return Classified(*_OF_FRAMES["cuda-sync"], FRAMES)
    return (
        Classified("python", f"in {facts.reported.activity}", FRAMES)
        if facts.reported.activity in COMPUTES and facts.reported.place.callee
        else None
    )


def _with_kernel_details(facts: RankFacts, classified: Classified) -> Classified:
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
        return Classified(*wait, FRAMES)
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


def _of_stacks(facts: RankFacts) -> Classified | None:
    """What the library frames of a fresh dump wait on."""
    word = waits_on(fresh_stacks(facts))
    if word in ("collective", "p2p"):
        return Classified(word, (COLLECTIVE if word == "collective" else P2P).phrase, STACKS)
    return (
        _with_kernel_details(facts, Classified(*_OF_FRAMES[word], STACKS))
        if word in _OF_FRAMES
        else None
    )


def _of_gil(facts: RankFacts, policy: Policy) -> Classified | None:
    """For a silent rank: whether its main thread asks for the GIL again and again."""
    if (
        facts.process.report is None
        or facts.process.working is not False
        or (facts.process.wakes_per_s or 0.0) < policy.gil_wakes_per_s
    ):
        return None
    # A sample may find it awake; then the kernel says nothing.
    wait = wait_of(facts.process.report)
    if wait is not None and wait[0] != "lock":
        return None
    return Classified("gil", "waiting for the GIL, held by another thread", KERNEL)


def awaited_path(facts: RankFacts, policy: Policy) -> str | None:
    """The lock file, file or named pipe that it waits for; None if that is not known."""
    place, process = facts.reported.place, facts.process.report
    if classify(facts, policy).word == "pipe":
        return path_of(process)
    return (place.waits_for if place is not None else None) or _polled_path(facts, policy)


def _polled_path(facts: RankFacts, policy: Policy) -> str | None:
    """The file for which it polls, asleep most of the time."""
    wakes = facts.process.wakes_per_s or 0.0
    idles = facts.process.working is False and wakes >= policy.poll_wakes_per_s
    return facts.reported.place.polls if facts.reported.place is not None and idles else None


def _of_kernel(facts: RankFacts, policy: Policy) -> Classified | None:
    process = facts.process.report
    wait = wait_of(process) if process is not None else None
    if process is None or wait is None:
        return None
    # A thread that works also sleeps now and then. Of such a sleep only the file that it reads is
    # meaningful.
    if wait[0] == "sleep" and (path := _polled_path(facts, policy)) is not None:
        return Classified("sleep", f"polling for {short(path)}", KERNEL)
    if facts.process.working is False or (
        facts.process.working and wait[0] == "file" and path_of(process) is not None
    ):
        # Between two sleeps a look may find it where it waits for the GIL.
        again = wait[0] in ("sleep", "lock") and wakes_often(facts, policy)
        return SHORT_SLEEPS if again else Classified(*wait, KERNEL)
    return None


def wakes_often(facts: RankFacts, policy: Policy) -> bool:
    """Whether its main thread has woken too often for one long sleep."""
    return (facts.process.wakes_per_s or 0.0) >= policy.of(ShortSleeps).per_s


def _of_cpu(facts: RankFacts, policy: Policy) -> Classified | None:
    process = facts.process.report
    if not facts.process.working or facts.process.cpu_ratio is None or process is None:
        return None
    # Its work may also be that of its children, or I/O: then its main thread sleeps.
    if process.state != "R" and (process.children or facts.process.cpu_ratio < policy.busy_ratio):
        return None
    if _is_silent(facts):
        return Classified("c", "computing in C", CPU)
    if facts.reported.place is None:
        return None
    if (facts.reported.line_age_s or 0.0) >= policy.same_line_s:
        return Classified(
            "c", "computing at the same line (a call into C, or a one-line loop)", CPU
        )
    return Classified("python", f"computing in {facts.reported.place.callee or 'Python'}", CPU)


def _in_c(facts: RankFacts, classified: Classified) -> str:
    """For a silent rank: C code that this line called holds the GIL, whatever it does."""
    stacks = fresh_stacks(facts)
    user = _user_frame(stacks) if stacks is not None else None
    does = classified.text if classified.source in (STACKS, KERNEL) else ""
    if user is not None and classified.word == "gil":
        return f"waiting at {file_line(user)} {user.function} for the GIL, held by another thread"
    if user is not None:
        return f"{does} in C called from {file_line(user)} {user.function}".strip()
    place = facts.reported.place
    if place is None:
        return classified.text or "at a place that cannot be seen"
    last = _of_call(facts) or _of_frames(facts) or _of_activity(facts)
    spot = f"{file_line(place)} {place.function}"
    seen = (
        f"last seen {last.text} ({spot})"
        if last is not None
        else f"last seen in {place.function} ({file_line(place)})"
    )
    return f"{does}, {seen}" if does else seen


def _main(stacks: Stacks) -> ThreadStack | None:
    """The main thread; if the source does not mark it, the only thread."""
    marked = next((thread for thread in stacks.threads if thread.main), None)
    return marked or (stacks.threads[0] if len(stacks.threads) == 1 else None)


def _user_frame(stacks: Stacks) -> StackFrame | None:
    """The innermost frame of the program's own code in its main thread."""
    thread = _main(stacks)
    return (
        next((frame for frame in thread.frames if owner_of(frame) is Owner.USER), None)
        if thread
        else None
    )


# -- How a rank's phase changes the time limits of those who wait for it: a checkpoint, a
#    validation or a compilation takes long


LONG_PHASES = (CHECKPOINT, VALIDATE, TEST, COMPILE, SANITY_CHECK)
"""Phases in which one rank may let the others wait. Names that the program has chosen do not
count."""


def phase_of(rank: RankFacts) -> TrainingProgress | None:
    """The progress of a rank that is in such a phase; None for all other ranks."""
    training = rank.progress.training
    if training is None or training.phase not in LONG_PHASES:
        return None
    if training.since_unix_ns is None or rank.gone:
        return None
    return training


def phase_patience_s(rank: RankFacts, works: bool, policy: Policy) -> float:
    """How long (s) the others may wait for a rank in a phase before the wait is critical; 0 if it
    is in none.

    `works`: it uses CPU or does I/O. If it works, the phase may last `overdue_factor` times its
    usual length. Otherwise it has less time, but at least the length of earlier phases.
    """
    training, limits = phase_of(rank), policy.of(PhaseLimits)
    if training is None:
        return 0.0
    longest_s = training.longest_s or 0.0
    if works:
        return limits.overdue_factor * longest_s
    return max(limits.still_limit_s, limits.usual_factor * longest_s)


def phase_clause(rank: RankFacts, now_unix_ns: int) -> str | None:
    """`saving a checkpoint (trainer.py:142), 40 s; usually 35 s`; None: it is in no such phase."""
    training = phase_of(rank)
    if training is None:
        return None
    place = rank.reported.place
    spot = f" ({file_line(place)})" if place is not None else ""
    lasts_s = max((now_unix_ns - (training.since_unix_ns or now_unix_ns)) / 1e9, 0.0)
    usual = f"; usually {duration(training.usual_s)}" if training.usual_s is not None else ""
    return f"{phase_text(training.phase or '')}{spot}, {duration(lasts_s)}{usual}"
