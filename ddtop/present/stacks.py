"""Merged stacks as lines: where each rank is, the ones that differ first, with the source around
their line.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ddtop.diagnosis.finding import Verdict
from ddtop.diagnosis.rank_state import culprits
from ddtop.follow.source_lines import Excerpt
from ddtop.grouped import grouped
from ddtop.model.account import activity_text
from ddtop.model.facts import RankFacts, Snapshot, State
from ddtop.model.stacks import (
    Branch,
    Frame,
    Merged,
    Owner,
    StackClass,
    Unanswered,
    merge,
    package_of,
    tree,
)
from ddtop.policy import Policy
from ddtop.present.now import end_text
from ddtop.present.text import (
    UNICODE,
    Glyphs,
    Line,
    Span,
    cell_width,
    clean,
    clip_line,
    fit,
    line_width,
    plain,
    short_names,
    wrap,
)
from ddtop.wire.names import framework_of
from ddtop.wire.records import LastException, Stacks
from ddtop.words import units
from ddtop.words.sentences import collective_text, rank_list, ranks_text
from ddtop.words.units import plural

# -- The traceback of an exception that nothing caught, as lines


def exception_of(rank: RankFacts) -> LastException | None:
    """The exception that nothing caught, of the rank's last report or of its exit."""
    return rank.reported.exception or (rank.process.exit.exception if rank.process.exit else None)


def traceback_lines(error: LastException) -> list[Line]:
    """One line per frame, outermost first as in Python's tracebacks; the program's own frames are
    highlighted."""
    lines: list[Line] = []
    if error.omitted:
        lines.append(((f"{error.omitted:,} frames in the middle are left out", "dim"),))
    for frame in reversed(error.frames):
        place = f"{clean(frame.file)}:{frame.line}"
        lines.append(((place, "" if frame.user else "dim"), (f" {clean(frame.function)}", "dim")))
    return lines


def tracebacks_text(ranks: Sequence[RankFacts]) -> str:
    """All tracebacks of a job; ranks that raised the same exception share one. Empty if no rank
    raised."""
    alike = grouped(
        ((error.type, error.text, error.frames), (rank.rank, error))
        for rank in ranks
        if (error := exception_of(rank)) is not None
    )
    parts = []
    for raised in alike.values():
        _, error = raised[-1]
        lines = [f"{ranks_text([number for number, _ in raised], 16)}:"]
        lines += [f"  {plain(line)}" for line in traceback_lines(error)]
        parts.append("\n".join([*lines, f"  {clean(error.type)}: {clean(error.text)}"]))
    return "\n\n".join(parts)


# -- Frames, ranks and paths of stacks, as a line shows them


USER_HEAD, USER_TAIL = 2, 6
"""In a deep stack the first frames identify the program and the last ones the place. Only the
number of the others is shown."""
RANGES_MAX = 6
LIBRARIES_MAX = 2


def frame_text(frame: Frame) -> str:
    """`data.py:40 load_image`; a frame without a file is its function alone."""
    function = clean(frame.function)
    if not frame.file:
        return function
    file = clean(frame.file.rpartition("/")[2])
    return f"{file}:{frame.line} {function}" if frame.line > 0 else f"{file} {function}"


def frame_style(frame: Frame) -> str:
    """Code of libraries is dim."""
    return "" if frame.user else "dim"


def place_of(stack_class: StackClass) -> Span:
    """The innermost user frame; without one, the innermost frame."""
    frame = stack_class.user_frame or (stack_class.frames[0] if stack_class.frames else None)
    return (
        (frame_text(frame), frame_style(frame)) if frame is not None else ("no Python frame", "dim")
    )


def _place(stack_class: StackClass) -> Span:
    """The same, so short that a long file leaves room for its function."""
    text, style = place_of(stack_class)
    return short_names(text, PLACE_MAX // 2), style


def who_text(stack_class: StackClass, ranks: Sequence[int] | None = None) -> str:
    """`7 ranks [0-4,6,7]`; pids for processes that are not ranks."""
    numbers = stack_class.ranks if ranks is None else ranks
    if numbers:
        return f"{plural(len(numbers), 'rank')} [{rank_list(numbers, RANGES_MAX)}]"
    pids = ", ".join(map(str, stack_class.pids[:RANGES_MAX])) + (
        ", .." if len(stack_class.pids) > RANGES_MAX else ""
    )
    return f"{plural(len(stack_class.pids), 'pid')} [{pids}]"


def threads_each(stack_class: StackClass) -> str:
    """How many threads these are, if it is more than one in each process."""
    # Two ranks on different hosts may have the same pid.
    processes = {(member.rank, member.pid) for member in stack_class.members}
    return (
        f", {len(stack_class.members)} threads" if len(stack_class.members) > len(processes) else ""
    )


def path_steps(stack_class: StackClass) -> list[Span]:
    """The stack from the outermost user frame inwards: user frames one by one; for consecutive
    other frames their library and their number."""
    frames = list(reversed(stack_class.frames))
    first = next((place for place, frame in enumerate(frames) if frame.user), 0)
    steps: list[Span] = []
    run: list[Frame] = []
    for frame in frames[first:]:
        if frame.user:
            steps += _run_steps(run, last=False)
            run = []
            steps.append((frame_text(frame), ""))
        else:
            run.append(frame)
    steps += _run_steps(run, last=True)
    return _shortened(steps)


def _run_steps(run: Sequence[Frame], last: bool) -> list[Span]:
    if not run:
        return []
    function = clean(run[-1].function)
    if len(run) == 1:
        owner = "" if run[0].owner is Owner.NATIVE else f"{clean(_library(run))}."
        return [(f"{owner}{function}", "dim")]
    if not last:
        return [(f"{clean(_library(run))} ({len(run)} frames)", "dim")]
    return [(f"{clean(_library(run))} ({plural(len(run) - 1, 'frame')})", "dim"), (function, "dim")]


def _library(run: Sequence[Frame]) -> str:
    """The library that most of the frames belong to; the outermost of several.

    Training frameworks come first, because they say more than the torch that they call.
    """
    frameworks = dict.fromkeys(name for frame in run if (name := framework_of(frame.file)))
    if frameworks:
        rest = [frame for frame in run if framework_of(frame.file) is None]
        several = [*frameworks, *([_main_library(rest)] if len(rest) > 1 else [])]
        return " and ".join(several[:LIBRARIES_MAX])
    return _main_library(run)


def _main_library(run: Sequence[Frame]) -> str:
    names = [package_of(frame.file) for frame in run if frame.owner is not Owner.NATIVE]
    names = names or [package_of(frame.file) for frame in run]
    return max(dict.fromkeys(names), key=names.count)


def _shortened(steps: list[Span]) -> list[Span]:
    left_out = len(steps) - USER_HEAD - USER_TAIL
    if left_out < 2:
        return steps
    return [*steps[:USER_HEAD], (f"({left_out} more)", "dim"), *steps[-USER_TAIL:]]


def frame_lines(stack_class: StackClass, width: int, glyphs: Glyphs) -> list[Line]:
    """Every frame in a line of its own, the innermost last; those of libraries with their library.

    The program's own frames are highlighted most, those of training frameworks more than other
    libraries.
    """
    lines: list[Line] = []
    for frame in reversed(stack_class.frames):
        library = "" if frame.user or not frame.file else f"  {package_of(frame.file)}"
        style = "bold" if frame.user else "" if framework_of(frame.file) else "dim"
        spans: Line = ((frame_text(frame), style), (clean(library), "dim"))
        lines.append(clip_line(spans, width, glyphs.ellipsis))
    return lines


def path_lines(steps: Sequence[Span], width: int, glyphs: Glyphs, lead: str = "") -> list[Line]:
    """The steps as a line, which wraps between two steps. `lead` is put before the first; further
    lines are indented."""
    lines: list[Line] = []
    line: list[Span] = [(lead, "dim")] if lead else []
    begun = len(line)
    for number, (text, style) in enumerate(steps):
        joint = [(f" {glyphs.then} ", "dim")] if number else []
        # A line that is not the last one ends with a sign.
        ends = 2 if number < len(steps) - 1 else 0
        more = cell_width(text) + (3 if number else 0) + ends
        if len(line) > begun and line_width(line) + more > width:
            lines.append(clip_line((*line, (f" {glyphs.then}", "dim")), width, glyphs.ellipsis))
            line, joint = [(" " * max(cell_width(lead), 2), "")], []
            begun = 1
        line += [*joint, (text, style)]
    if line:
        lines.append(clip_line(tuple(line), width, glyphs.ellipsis))
    return lines


# -- The prefix tree of merged stacks: every frame once, with the ranks that go through it


STEP = 3


def tree_lines(
    classes: Iterable[StackClass], width: int, glyphs: Glyphs, doing: Mapping[int, str]
) -> list[Line]:
    """From the outermost frame down, with the ranks at each branch."""
    lines: list[Line] = []
    for branch in tree(classes):
        before = "".join(
            " " * STEP if last else glyphs.upright + " " * (STEP - 1) for last in branch.last[:-1]
        )
        corner = (glyphs.corner if branch.last[-1] else glyphs.fork) + glyphs.rule + " "
        below = (
            before + (" " * STEP if branch.last[-1] else glyphs.upright + " " * (STEP - 1)) + "   "
        )
        head: list[Span] = [(before + corner, "dim"), (_who_at(branch), "bold")]
        notes = [text for stack_class in branch.ends for text in _notes(stack_class, doing)]
        if notes:
            head.append((f"  {notes[0]}", ""))
        lines.append(clip_line(tuple(head), width, glyphs.ellipsis))
        if len(branch.last) == 1 and (
            omitted := max(stack_class.omitted for stack_class in branch.classes)
        ):
            lines.append(((below, "dim"), (f"({plural(omitted, 'outer frame')} left out)", "dim")))
        for frame in branch.frames:
            line: Line = ((below, "dim"), (frame_text(frame), frame_style(frame)))
            lines.append(clip_line(line, width, glyphs.ellipsis))
    return lines


def _who_at(branch: Branch) -> str:
    """All classes of a branch together; `ranks` are those of every one of them."""
    if branch.ranks:
        return who_text(branch.classes[0], branch.ranks)
    pids = dict.fromkeys(pid for stack_class in branch.classes for pid in stack_class.pids)
    return f"{plural(len(pids), 'pid')} [{', '.join(map(str, pids))}]"


def _notes(stack_class: StackClass, doing: Mapping[int, str]) -> list[str]:
    """The activity, if all of them do the same; the list of classes has the activity of each
    rank."""
    found = {doing.get(rank) for rank in stack_class.ranks}
    text = found.pop() if len(found) == 1 else None
    return [clean(text)] if text else []


# -- Merged stacks as lines, with the source


CLASSES_MAX = 256
"""The screen shows at most this many; JSON has all."""
EXCERPTS_MAX = 4
"""The source is shown for at most this many classes; with more of them, none stands out."""
WORKERS_MAX = 4
DOING_MAX = 3
"""How many different activities of ranks at one place are shown; a line has no room for more."""
PLACE_MAX, ROLE_MAX = 44, 28
INDENT = "     "

Read = Callable[[str, int, int], "Excerpt | None"]


@dataclass(frozen=True, slots=True)
class Around:
    """Facts besides the stacks.

    `doing`: what each rank does, as a phrase that can follow "is". `blamed`: ranks at fault.
    `started`: when the rank's process began (unix ns). `read`: returns the source around a line,
    None if it is not available.
    """

    doing: Mapping[int, str] = field(default_factory=dict)
    blamed: frozenset[int] = frozenset()
    started: Mapping[int, int] = field(default_factory=dict)
    read: Read | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """How the stacks are shown: as classes or as a `tree`; with all `threads`, or with one line per
    class for threads other than the main thread; with all `frames`, or with those of libraries
    folded."""

    tree: bool = False
    threads: bool = False
    frames: bool = False


def stacks_text(
    merged: Merged,
    width: int,
    glyphs: Glyphs = UNICODE,
    around: Around = Around(),
    shape: Shape = Shape(),
) -> str:
    """What `ddtop stacks` prints."""
    lines = [head_line(merged), *stacks_lines(merged, width, glyphs, around, shape)]
    return "\n".join(plain(line) for line in lines) + "\n"


def head_line(merged: Merged, age: str = "") -> Line:
    """`8 ranks asked, 8 answered (7 by agent, 1 by signal) 12:03:41`."""
    ranks = any(
        member.rank >= 0 for stack_class in merged.classes for member in stack_class.members
    )
    ranks = (
        ranks or any(unanswered.rank >= 0 for unanswered in merged.unanswered) or not merged.asked
    )
    asked = f"{units.plural(merged.asked, 'rank') if ranks else _processes(merged.asked)} asked"
    ways = ", ".join(f"{number} by {clean(method)}" for method, number in merged.methods)
    text = f"{asked}, {merged.answered} answered" + (f" ({ways})" if ways else "")
    when = "" if merged.last_unix_ns is None else f" {units.clock(merged.last_unix_ns)}"
    asked_by = ", automatically" if merged.automatic else ""
    return ((text, "title"), (f"{when}{age}{asked_by}", "dim"))


def _processes(number: int) -> str:
    return f"{number:,} process" + ("" if number == 1 else "es")


def stacks_lines(
    merged: Merged, width: int, glyphs: Glyphs, around: Around, shape: Shape
) -> list[Line]:
    """Everything below the head line, at most `width` columns wide."""
    lines = list(_unanswered(merged.unanswered, width, glyphs))
    if shape.tree:
        lines += tree_lines(merged.main, width, glyphs, around.doing)
    else:
        lines += _blocks(merged, merged.main, width, glyphs, around, shape.frames)
    if not merged.others:
        return lines
    lines += [(), (("other threads", "title"),)]
    if not shape.threads:
        lines += _summaries(merged.others, width, glyphs)
    elif shape.tree:
        for role in dict.fromkeys(stack_class.role for stack_class in merged.others):
            lines.append(((f"{clean(role)}", "heading"),))
            lines += tree_lines(
                [stack_class for stack_class in merged.others if stack_class.role == role],
                width,
                glyphs,
                {},
            )
    else:
        lines += _blocks(merged, merged.others, width, glyphs, Around(), shape.frames)
    return lines


def _unanswered(unanswered: Sequence[Unanswered], width: int, glyphs: Glyphs) -> Iterator[Line]:
    """The ranks without stacks, grouped by reason."""
    for why, those in grouped((one.why, one) for one in unanswered).items():
        ranks = [missing.rank for missing in those if missing.rank >= 0]
        who = ranks_text(ranks, 6) or f"pid {', '.join(str(missing.pid) for missing in those[:6])}"
        # The reason describes a single process.
        who = f"each of {who}" if len(those) > 1 else who
        for number, text in enumerate(wrap(clean(f"{who} did not answer: {why}"), width - 2)):
            yield ((f"{' ' if number else glyphs.warning} {text}", "warning"),)


# -- classes


def _blocks(
    merged: Merged,
    classes: Sequence[StackClass],
    width: int,
    glyphs: Glyphs,
    around: Around,
    frames: bool = False,
) -> list[Line]:
    if not classes:
        return []
    left_out, classes = len(classes) - CLASSES_MAX, classes[:CLASSES_MAX]
    whos = [_who(stack_class) for stack_class in classes]
    places = [_place(stack_class)[0] for stack_class in classes]
    columns = (
        min(max(map(cell_width, whos)), width // 3 if classes[0].main else width // 2),
        min(max(map(cell_width, places)), PLACE_MAX, width // 2),
    )
    marked = any(
        stack_class.main and not around.blamed.isdisjoint(stack_class.ranks)
        for stack_class in classes
    )
    columns = (columns[0] + 2 * marked, columns[1])
    shown_source = 0
    lines: list[Line] = []
    for number, stack_class in enumerate(classes):
        last = number == len(classes) - 1
        corner = (glyphs.corner if last else glyphs.fork) + glyphs.rule
        bar = " " if last else glyphs.upright
        odd = merged.is_odd(stack_class)
        room = width - len(INDENT)
        body: list[Line] = (
            frame_lines(stack_class, room, glyphs)
            if frames
            else path_lines(path_steps(stack_class), room, glyphs)
        )
        busy = _busy_workers(merged, stack_class)
        body += _worker_lines(merged, stack_class, busy, odd, width - len(INDENT), glyphs)
        if odd and shown_source < EXCERPTS_MAX:
            source = _source(stack_class, busy, around, width - len(INDENT), glyphs)
            shown_source += bool(source)
            body += source
        elif len(classes) == 1 and stack_class.main:
            # All ranks are at one place, so its source is shown.
            body += _source(stack_class, busy, around, width - len(INDENT), glyphs)
        lines.append(_title(stack_class, odd, corner, columns, width, glyphs, around))
        lines += [((bar + INDENT[1:], "dim"), *line) for line in body]
    if left_out > 0:
        lines.append(((f"and {left_out:,} more places", "dim"),))
    return lines


def _who(stack_class: StackClass) -> str:
    return (
        who_text(stack_class)
        + threads_each(stack_class)
        + ("" if stack_class.main else f" {clean(stack_class.role)}")
    )


def _title(
    stack_class: StackClass,
    odd: bool,
    corner: str,
    columns: tuple[int, int],
    width: int,
    glyphs: Glyphs,
    around: Around,
) -> Line:
    at_fault = not around.blamed.isdisjoint(stack_class.ranks) and stack_class.main
    style = "critical" if at_fault else "warning" if odd else ""
    place, place_style = _place(stack_class)
    mark = f"{glyphs.critical} " if at_fault else ""
    doing = doing_text(stack_class, around.doing)
    line: list[Span] = [
        (f"{corner} ", "dim"),
        (fit(mark + _who(stack_class), columns[0], ellipsis=glyphs.ellipsis), style),
        ("  ", ""),
        (
            fit(place, columns[1], ellipsis=glyphs.ellipsis) if doing else place,
            style or place_style,
        ),
    ]
    if doing:
        line += [("  ", ""), (doing, style)]
    return clip_line(tuple(line), width, glyphs.ellipsis)


def doing_text(stack_class: StackClass, doing: Mapping[int, str]) -> str:
    """What these ranks do, only for the rank's own thread. If ranks at one line do different
    things, each is listed with its ranks."""
    ranks = stack_class.ranks if stack_class.main else ()
    found = grouped((doing[rank], rank) for rank in ranks if rank in doing)
    if len(found) == 1 and sum(map(len, found.values())) == len(stack_class.ranks):
        return clean(next(iter(found)))
    most = sorted(found.items(), key=lambda item: -len(item[1]))
    return clean("; ".join(f"{ranks_text(ranks, 4)}: {text}" for text, ranks in most[:DOING_MAX]))


def _busy_workers(merged: Merged, stack_class: StackClass) -> list[StackClass]:
    """The classes of these ranks' DataLoader workers that are in the program's own code."""
    if not stack_class.main:
        return []
    ranks = set(stack_class.ranks)
    return [
        each
        for each in merged.workers
        if each.main and each.user_frame and not ranks.isdisjoint(each.ranks)
    ]


def _worker_lines(
    merged: Merged,
    stack_class: StackClass,
    busy: Sequence[StackClass],
    odd: bool,
    width: int,
    glyphs: Glyphs,
) -> list[Line]:
    if not stack_class.main:
        return []
    ranks = set(stack_class.ranks)
    of_these = [each for each in merged.workers if each.main and not ranks.isdisjoint(each.ranks)]
    idle = sum(len(_pids(each, ranks)) for each in of_these if each not in busy)
    lines: list[Line] = []
    if odd or len(ranks) == 1:
        for each in busy[:WORKERS_MAX]:
            pids = _pids(each, ranks)
            who = f"worker {pids[0]}" if len(pids) == 1 else f"{len(pids)} workers ({pids[0]}, ..)"
            lines += path_lines(path_steps(each), width, glyphs, f"{who}: ")
        more = len(busy) - WORKERS_MAX
        parts = [f"workers at {more} more places"] if more > 0 else []
    else:
        parts = [f"{len(_pids(each, ranks))} at {place_of(each)[0]}" for each in busy[:WORKERS_MAX]]
    if idle:
        parts.append(
            f"{units.plural(idle, 'worker')} waiting for work"
            if odd or not parts
            else f"{idle} waiting for work"
        )
    if parts:
        lead = "" if odd or parts[0].endswith("work") else "workers: "
        lines.append(clip_line(((lead + ", ".join(parts), "dim"),), width, glyphs.ellipsis))
    return lines


def _pids(stack_class: StackClass, ranks: set[int]) -> list[int]:
    return list(dict.fromkeys(member.pid for member in stack_class.members if member.rank in ranks))


# -- other threads in a line


def _summaries(classes: Sequence[StackClass], width: int, glyphs: Glyphs) -> list[Line]:
    whos = [who_text(stack_class) + threads_each(stack_class) for stack_class in classes]
    roles = [clean(stack_class.role) for stack_class in classes]
    columns = (
        min(max(map(cell_width, whos)), width // 3),
        min(max(map(cell_width, roles)), ROLE_MAX, width // 3),
    )
    lines = []
    for who, role, stack_class in zip(whos, roles, classes, strict=True):
        text, style = place_of(stack_class)
        line: Line = (
            (f"  {fit(who, columns[0], ellipsis=glyphs.ellipsis)}  ", "dim"),
            (f"{fit(role, columns[1], ellipsis=glyphs.ellipsis)}  ", ""),
            (text, style),
        )
        lines.append(clip_line(line, width, glyphs.ellipsis))
    return lines


# -- source


def _source(
    stack_class: StackClass, busy: Sequence[StackClass], around: Around, width: int, glyphs: Glyphs
) -> list[Line]:
    """The source lines around the innermost user frame.

    For a rank that waits for a DataLoader worker, those of the worker.
    """
    shown = busy[0] if busy and _in_loader(stack_class) else stack_class
    frame = shown.user_frame
    if frame is None or around.read is None:
        return []
    started = min(
        (around.started[rank] for rank in shown.ranks if around.started.get(rank)), default=0
    )
    excerpt = around.read(frame.file, frame.line, started)
    return excerpt_lines(excerpt, frame.file, frame.line, width, glyphs)


def _in_loader(stack_class: StackClass) -> bool:
    """Whether it waits for a batch; then its workers' lines say more than its own."""
    called = (
        stack_class.frames[: stack_class.frames.index(stack_class.user_frame)]
        if stack_class.user_frame is not None
        else ()
    )
    return any("/torch/utils/data/" in frame.file for frame in called)


def excerpt_lines(
    excerpt: Excerpt | None, file: str, line: int, width: int, glyphs: Glyphs
) -> list[Line]:
    """Numbered source lines with an arrow at that line; none where the file could not be read.
    Lines of a file that has changed since are not shown, because they would be wrong."""
    if excerpt is None:
        return []
    if excerpt.changed:
        name = clean(file.rpartition("/")[2])
        return [
            clip_line(
                ((f"({name} has changed since the job started)", "dim"),), width, glyphs.ellipsis
            )
        ]
    texts = [clean(line) for line in excerpt.lines]
    indent = min((len(line) - len(line.lstrip()) for line in texts if line.strip()), default=0)
    digits = len(str(excerpt.first + len(texts) - 1))
    lines: list[Line] = []
    for number, text in enumerate(texts, excerpt.first):
        here = number == line
        lead = glyphs.arrow if here else " " * len(glyphs.arrow)
        spans: Line = (
            (f"{lead} {number:>{digits}} {glyphs.upright} ", "dim"),
            (text[indent:], "bold" if here else ""),
        )
        lines.append(clip_line(spans, width, glyphs.ellipsis))
    return lines


# -- Selects from a snapshot the stacks of one request, and the ranks that have not answered it


def last_request(snapshot: Snapshot) -> str | None:
    """The request of the last dump, whoever made it."""
    newest = max(
        (rank.dump.stacks for rank in snapshot.ranks if rank.dump.stacks),
        key=lambda stacks: stacks.taken_unix_ns,
        default=None,
    )
    return newest.request if newest is not None else None


def answers(
    snapshot: Snapshot, request: str, asked_unix_ns: int | None = None, ranks: Collection[int] = ()
) -> list[Stacks]:
    """The stacks of one dump, with workers.

    `asked_unix_ns` and `ranks` (empty: all) are given for a dump that this viewer asked for: then
    stacks that were taken later for another request count as well, and ranks that can no longer
    answer are included as unanswered.
    """
    found: list[Stacks] = []
    missed: list[RankFacts] = []
    for rank in snapshot.ranks:
        stacks = rank.dump.stacks
        if ranks and rank.rank not in ranks:
            continue
        if stacks is not None and (
            stacks.request == request
            or (asked_unix_ns is not None and stacks.taken_unix_ns >= asked_unix_ns)
        ):
            found += [stacks, *rank.dump.worker_stacks]
        else:
            missed.append(rank)
    taken = max((stacks.taken_unix_ns for stacks in found), default=snapshot.time_unix_ns)
    if asked_unix_ns is not None or (found and all(_cannot_answer(rank, taken) for rank in missed)):
        found += [_absent(rank, request, taken) for rank in missed if _cannot_answer(rank, taken)]
    return found


def _cannot_answer(rank: RankFacts, at_unix_ns: int) -> bool:
    """Whether it had ended, or had not started, when the others were asked."""
    return rank.state is State.MISSING or (
        rank.gone and (rank.process.exit_unix_ns or 0) <= at_unix_ns
    )


def _absent(rank: RankFacts, request: str, at_unix_ns: int) -> Stacks:
    why = (
        f"its process is gone: {end_text(rank.process.exit)}"
        if rank.process.exit is not None
        else "it was never seen"
    )
    return Stacks(request, rank.rank, rank.pid or 0, at_unix_ns, why=why)


def at_fault(verdict: Verdict, snapshot: Snapshot | None = None) -> tuple[int, ...]:
    """The ranks at fault that still exist. The later death of a rank says nothing about where it
    was before."""
    return tuple(
        rank for rank in culprits(verdict) if snapshot is None or not snapshot.rank(rank).gone
    )


def merged_of(
    stacks: Iterable[Stacks], verdict: Verdict, snapshot: Snapshot | None = None
) -> Merged:
    """The stacks as classes, those of the ranks at fault first."""
    return merge(stacks, at_fault(verdict, snapshot))


def around(
    snapshot: Snapshot, verdict: Verdict, merged: Merged, read: Read | None, policy: Policy
) -> Around:
    """Facts from the snapshot that were true when the stacks were taken."""
    taken = merged.last_unix_ns or snapshot.time_unix_ns
    return Around(
        doing={
            rank.rank: text for rank in snapshot.ranks if (text := _doing_then(rank, taken, policy))
        },
        blamed=frozenset(at_fault(verdict, snapshot)),
        started={
            rank.rank: rank.hello.started_unix_ns
            for rank in snapshot.ranks
            if rank.hello is not None
        },
        read=read,
    )


def _doing_then(rank: RankFacts, taken_unix_ns: int, policy: Policy) -> str | None:
    """What it does now, if it has made no progress since its stack was taken."""
    if rank.dump.stacks is None or rank.gone or (rank.progress.last_unix_ns or 0) > taken_unix_ns:
        return None
    return _doing(rank, policy)


def _doing(rank: RankFacts, policy: Policy) -> str | None:
    """For a rank that waits for others, the collective is the best description."""
    if rank.wait is not None and (rank.agent.report_age_s or 0.0) <= policy.wait_fresh_s:
        return f"waiting in {clean(collective_text(rank.wait.op, rank.wait.seq))}"
    return activity_text(rank)
