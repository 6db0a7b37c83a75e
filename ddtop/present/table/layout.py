"""Columns of text for a list: what a width has room for, and a row of it with its styles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddtop.present.text import Line, Span, fit


@dataclass(frozen=True, slots=True)
class Field:
    """One column. `grows`: it takes what is left, in shares of this weight. `rank`: those with the highest leave first
    where there is no room; 0 never leaves."""

    key: str
    title: str
    width: int
    right: bool = False
    grows: int = 0
    rank: int = 0
    most: int = 999


@dataclass(frozen=True, slots=True)
class Table:
    """The columns that a width has room for."""

    fields: tuple[Field, ...]
    widths: tuple[int, ...]

    def width(self, key: str) -> int:
        """Columns of the field of that name; 0 where it has no room."""
        return next((width for field, width in zip(self.fields, self.widths, strict=True) if field.key == key), 0)

    def titles(self) -> Line:
        """The row of titles."""
        return self.line({field.key: (field.title, "heading") for field in self.fields})

    def line(self, cells: Mapping[str, Span], ellipsis: str = "…") -> Line:
        """A row of these texts with their styles."""
        spans: list[Span] = []
        for number, (field, width) in enumerate(zip(self.fields, self.widths, strict=True)):
            if number:
                spans.append(("  ", ""))
            text, style = cells[field.key]
            spans.append((fit(text, width, field.right, ellipsis), style))
        return tuple(spans)


def table_for(fields: Sequence[Field], width: int) -> Table:
    """As many columns as fit, two columns of space between them; what is left goes to those that grow."""
    chosen = list(fields)

    def used() -> int:
        return sum(field.width for field in chosen) + 2 * (len(chosen) - 1)

    while used() > width and any(field.rank for field in chosen):
        chosen.remove(max(chosen, key=lambda field: field.rank))
    widths = {field.key: field.width for field in chosen}
    room = width - used()
    while room > 0:
        growing = [field for field in chosen if field.grows and widths[field.key] < field.most]
        total = sum(field.grows for field in growing)
        if not growing:
            break
        before = room
        for field in growing:
            more = min(max(before * field.grows // total, 1), field.most - widths[field.key], room)
            widths[field.key] += more
            room -= more
    return Table(tuple(chosen), tuple(widths[field.key] for field in chosen))
