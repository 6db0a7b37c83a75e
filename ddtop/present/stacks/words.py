"""Frames, ranks and paths of stacks, as a line shows them."""

from __future__ import annotations

from collections.abc import Sequence

from ddtop.model.stacks.frames import Owner, package_of
from ddtop.model.stacks.merge import Frame, StackClass
from ddtop.present.glyphs import Glyphs
from ddtop.present.text import Line, Span, cell_width, clean, clip_line, line_width
from ddtop.wire.frameworks import framework_of
from ddtop.words.ranks import rank_list
from ddtop.words.units import plural

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


def place_of(one: StackClass) -> Span:
    """The innermost user frame; without one, the innermost frame."""
    frame = one.user_frame or (one.frames[0] if one.frames else None)
    return (
        (frame_text(frame), frame_style(frame)) if frame is not None else ("no Python frame", "dim")
    )


def who_text(one: StackClass, ranks: Sequence[int] | None = None) -> str:
    """`7 ranks [0-4,6,7]`; pids for processes that are not ranks."""
    numbers = one.ranks if ranks is None else ranks
    if numbers:
        return f"{plural(len(numbers), 'rank')} [{rank_list(numbers, RANGES_MAX)}]"
    pids = ", ".join(map(str, one.pids[:RANGES_MAX])) + (
        ", .." if len(one.pids) > RANGES_MAX else ""
    )
    return f"{plural(len(one.pids), 'pid')} [{pids}]"


def threads_each(one: StackClass) -> str:
    """How many threads these are, if it is more than one in each process."""
    # Two ranks on different hosts may have the same pid.
    processes = {(member.rank, member.pid) for member in one.members}
    return f", {len(one.members)} threads" if len(one.members) > len(processes) else ""


def path_steps(one: StackClass) -> list[Span]:
    """The stack from the outermost user frame inwards: user frames one by one; for consecutive
    other frames their library and their number."""
    frames = list(reversed(one.frames))
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


def frame_lines(one: StackClass, width: int, glyphs: Glyphs) -> list[Line]:
    """Every frame in a line of its own, the innermost last; those of libraries with their library.

    The program's own frames are highlighted most, those of training frameworks more than other
    libraries.
    """
    lines: list[Line] = []
    for frame in reversed(one.frames):
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
        if len(line) > begun and line_width(line) + cell_width(text) + (3 if number else 0) > width:
            lines.append(clip_line((*line, (f" {glyphs.then}", "dim")), width, glyphs.ellipsis))
            line, joint = [(" " * max(cell_width(lead), 2), "")], []
            begun = 1
        line += [*joint, (text, style)]
    if line:
        lines.append(clip_line(tuple(line), width, glyphs.ellipsis))
    return lines
