"""The traceback of an exception that nothing caught, as lines."""

from __future__ import annotations

from collections.abc import Sequence

from ddtop.model.state.facts import RankFacts
from ddtop.present.text import Line, clean, plain
from ddtop.wire.records import LastException
from ddtop.words.ranks import ranks_text


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
    alike: dict[tuple[object, ...], list[int]] = {}
    errors: dict[tuple[object, ...], LastException] = {}
    for rank in ranks:
        error = exception_of(rank)
        if error is not None:
            key: tuple[object, ...] = (error.type, error.text, error.frames)
            alike.setdefault(key, []).append(rank.rank)
            errors[key] = error
    parts = []
    for alike_key, numbers in alike.items():
        error = errors[alike_key]
        lines = [f"{ranks_text(tuple(numbers), 16)}:"]
        lines += [f"  {plain(line)}" for line in traceback_lines(error)]
        parts.append("\n".join([*lines, f"  {clean(error.type)}: {clean(error.text)}"]))
    return "\n\n".join(parts)
