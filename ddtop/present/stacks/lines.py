"""Merged stacks as lines: where each rank is, the ones that differ first, with the source around
their line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ddtop.model.stacks.merge import Frame, Merged, StackClass, Unanswered
from ddtop.present.glyphs import UNICODE, Glyphs
from ddtop.present.stacks.tree import tree_lines
from ddtop.present.stacks.words import (
    frame_lines,
    path_lines,
    path_steps,
    place_of,
    threads_each,
    who_text,
)
from ddtop.present.text import Line, Span, cell_width, clean, clip_line, fit, plain, wrap
from ddtop.viewer.source_lines import Excerpt
from ddtop.words import units
from ddtop.words.ranks import ranks_text

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
    ranks = any(member.rank >= 0 for one in merged.classes for member in one.members)
    ranks = ranks or any(one.rank >= 0 for one in merged.unanswered) or not merged.asked
    asked = f"{units.plural(merged.asked, 'rank') if ranks else _processes(merged.asked)} asked"
    ways = ", ".join(f"{number} by {clean(method)}" for method, number in merged.methods)
    text = f"{asked}, {merged.answered} answered" + (f" ({ways})" if ways else "")
    when = "" if merged.last_unix_ns is None else f" {units.clock(merged.last_unix_ns)}"
    asked_by = ", by itself" if merged.automatic else ""
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
        for role in dict.fromkeys(one.role for one in merged.others):
            lines.append(((f"{clean(role)}", "heading"),))
            lines += tree_lines(
                [one for one in merged.others if one.role == role], width, glyphs, {}
            )
    else:
        lines += _blocks(merged, merged.others, width, glyphs, Around(), shape.frames)
    return lines


def _unanswered(unanswered: Sequence[Unanswered], width: int, glyphs: Glyphs) -> Iterator[Line]:
    """The ranks without stacks, grouped by reason."""
    reasons: dict[str, list[Unanswered]] = {}
    for one in unanswered:
        reasons.setdefault(one.why, []).append(one)
    for why, those in reasons.items():
        ranks = [one.rank for one in those if one.rank >= 0]
        who = ranks_text(ranks, 6) or f"pid {', '.join(str(one.pid) for one in those[:6])}"
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
    whos = [_who(one) for one in classes]
    places = [place_of(one)[0] for one in classes]
    columns = (
        min(max(map(cell_width, whos)), width // 3 if classes[0].main else width // 2),
        min(max(map(cell_width, places)), PLACE_MAX, width // 2),
    )
    marked = any(one.main and not around.blamed.isdisjoint(one.ranks) for one in classes)
    columns = (columns[0] + 2 * marked, columns[1])
    shown_source = 0
    lines: list[Line] = []
    for number, one in enumerate(classes):
        last = number == len(classes) - 1
        corner = (glyphs.corner if last else glyphs.fork) + glyphs.rule
        bar = " " if last else glyphs.upright
        odd = merged.is_odd(one)
        room = width - len(INDENT)
        body: list[Line] = (
            frame_lines(one, room, glyphs) if frames else path_lines(path_steps(one), room, glyphs)
        )
        busy = _busy_workers(merged, one)
        body += _worker_lines(merged, one, busy, odd, width - len(INDENT), glyphs)
        if odd and shown_source < EXCERPTS_MAX:
            source = _source(one, busy, around, width - len(INDENT), glyphs)
            shown_source += bool(source)
            body += source
        elif len(classes) == 1 and one.main:
            # All ranks are at one place, so its source is shown.
            body += _source(one, busy, around, width - len(INDENT), glyphs)
        lines.append(_title(one, odd, corner, columns, width, glyphs, around))
        lines += [((bar + INDENT[1:], "dim"), *line) for line in body]
    if left_out > 0:
        lines.append(((f"and {left_out:,} more places", "dim"),))
    return lines


def _who(one: StackClass) -> str:
    return who_text(one) + threads_each(one) + ("" if one.main else f" {clean(one.role)}")


def _title(
    one: StackClass,
    odd: bool,
    corner: str,
    columns: tuple[int, int],
    width: int,
    glyphs: Glyphs,
    around: Around,
) -> Line:
    at_fault = not around.blamed.isdisjoint(one.ranks) and one.main
    style = "critical" if at_fault else "warning" if odd else ""
    place, place_style = place_of(one)
    mark = f"{glyphs.critical} " if at_fault else ""
    doing = doing_text(one, around.doing)
    line: list[Span] = [
        (f"{corner} ", "dim"),
        (fit(mark + _who(one), columns[0], ellipsis=glyphs.ellipsis), style),
        ("  ", ""),
        (
            fit(place, columns[1], ellipsis=glyphs.ellipsis) if doing else place,
            style or place_style,
        ),
    ]
    if doing:
        line += [("  ", ""), (doing, style)]
    return clip_line(tuple(line), width, glyphs.ellipsis)


def doing_text(one: StackClass, doing: Mapping[int, str]) -> str:
    """What these ranks do, only for the rank's own thread. If ranks at one line do different
    things, each is listed with its ranks."""
    found: dict[str, list[int]] = {}
    for rank in one.ranks if one.main else ():
        if rank in doing:
            found.setdefault(doing[rank], []).append(rank)
    if len(found) == 1 and sum(map(len, found.values())) == len(one.ranks):
        return clean(next(iter(found)))
    most = sorted(found.items(), key=lambda item: -len(item[1]))
    return clean("; ".join(f"{ranks_text(ranks, 4)}: {text}" for text, ranks in most[:DOING_MAX]))


def _busy_workers(merged: Merged, one: StackClass) -> list[StackClass]:
    """The classes of these ranks' DataLoader workers that are in the program's own code."""
    if not one.main:
        return []
    ranks = set(one.ranks)
    return [
        each
        for each in merged.workers
        if each.main and each.user_frame and not ranks.isdisjoint(each.ranks)
    ]


def _worker_lines(
    merged: Merged,
    one: StackClass,
    busy: Sequence[StackClass],
    odd: bool,
    width: int,
    glyphs: Glyphs,
) -> list[Line]:
    if not one.main:
        return []
    ranks = set(one.ranks)
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


def _pids(one: StackClass, ranks: set[int]) -> list[int]:
    return list(dict.fromkeys(member.pid for member in one.members if member.rank in ranks))


# -- other threads in a line


def _summaries(classes: Sequence[StackClass], width: int, glyphs: Glyphs) -> list[Line]:
    whos = [who_text(one) + threads_each(one) for one in classes]
    roles = [clean(one.role) for one in classes]
    columns = (
        min(max(map(cell_width, whos)), width // 3),
        min(max(map(cell_width, roles)), ROLE_MAX, width // 3),
    )
    lines = []
    for who, role, one in zip(whos, roles, classes, strict=True):
        text, style = place_of(one)
        line: Line = (
            (f"  {fit(who, columns[0], ellipsis=glyphs.ellipsis)}  ", "dim"),
            (f"{fit(role, columns[1], ellipsis=glyphs.ellipsis)}  ", ""),
            (text, style),
        )
        lines.append(clip_line(line, width, glyphs.ellipsis))
    return lines


# -- source


def _source(
    one: StackClass, busy: Sequence[StackClass], around: Around, width: int, glyphs: Glyphs
) -> list[Line]:
    """The source lines around the innermost user frame.

    For a rank that waits for a DataLoader worker, those of the worker.
    """
    shown = busy[0] if busy and _in_loader(one) else one
    frame = shown.user_frame
    if frame is None or around.read is None:
        return []
    started = min(
        (around.started[rank] for rank in shown.ranks if around.started.get(rank)), default=0
    )
    excerpt = around.read(frame.file, frame.line, started)
    return [] if excerpt is None else excerpt_lines(excerpt, frame, width, glyphs)


def _in_loader(one: StackClass) -> bool:
    """Whether it waits for a batch; then its workers' lines say more than its own."""
    called = one.frames[: one.frames.index(one.user_frame)] if one.user_frame is not None else ()
    return any("/torch/utils/data/" in frame.file for frame in called)


def excerpt_lines(excerpt: Excerpt, frame: Frame, width: int, glyphs: Glyphs) -> list[Line]:
    """Numbered source lines with an arrow at the line of the frame. Lines of a file that has
    changed since are not shown, because they would be wrong."""
    if excerpt.changed:
        name = clean(frame.file.rpartition("/")[2])
        return [
            clip_line(
                ((f"({name} was changed since the job started)", "dim"),), width, glyphs.ellipsis
            )
        ]
    texts = [clean(line) for line in excerpt.lines]
    indent = min((len(line) - len(line.lstrip()) for line in texts if line.strip()), default=0)
    digits = len(str(excerpt.first + len(texts) - 1))
    lines: list[Line] = []
    for number, text in enumerate(texts, excerpt.first):
        here = number == frame.line
        lead = glyphs.arrow if here else " " * len(glyphs.arrow)
        spans: Line = (
            (f"{lead} {number:>{digits}} {glyphs.upright} ", "dim"),
            (text[indent:], "bold" if here else ""),
        )
        lines.append(clip_line(spans, width, glyphs.ellipsis))
    return lines
