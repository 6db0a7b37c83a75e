"""The prefix tree of merged stacks: every frame once, with the ranks that go through it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ddtop.model.stacks.merge import Branch, StackClass, tree
from ddtop.present.glyphs import Glyphs
from ddtop.present.stacks.words import frame_style, frame_text, who_text
from ddtop.present.text import Line, Span, clean, clip_line
from ddtop.words.units import plural

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
        head: list[Span] = [(before + corner, "dim"), (_who(branch), "bold")]
        notes = [text for one in branch.ends for text in _notes(one, doing)]
        if notes:
            head.append((f"  {notes[0]}", ""))
        lines.append(clip_line(tuple(head), width, glyphs.ellipsis))
        if len(branch.last) == 1 and (omitted := max(one.omitted for one in branch.classes)):
            lines.append(((below, "dim"), (f"({plural(omitted, 'outer frame')} left out)", "dim")))
        for frame in branch.frames:
            line: Line = ((below, "dim"), (frame_text(frame), frame_style(frame)))
            lines.append(clip_line(line, width, glyphs.ellipsis))
    return lines


def _who(branch: Branch) -> str:
    """All classes of a branch together; `ranks` are those of every one of them."""
    if branch.ranks:
        return who_text(branch.classes[0], branch.ranks)
    pids = dict.fromkeys(pid for one in branch.classes for pid in one.pids)
    return f"{plural(len(pids), 'pid')} [{', '.join(map(str, pids))}]"


def _notes(one: StackClass, doing: Mapping[int, str]) -> list[str]:
    """The activity, if all of them do the same; the list of classes has the activity of each
    rank."""
    found = {doing.get(rank) for rank in one.ranks}
    text = found.pop() if len(found) == 1 else None
    return [clean(text)] if text else []
