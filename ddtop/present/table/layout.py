"""Tables of text: chooses the columns that fit into a width, and makes rows with styles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ddtop.present.text import Line, Span, fit


@dataclass(frozen=True, slots=True)
class Field:
    """One column.

    `width`: the smallest width, in columns of the terminal; `most`: the largest. `grows`: the
    column takes a share of the remaining room, by this weight. `rank`: without room, columns with
    the highest rank are dropped first; 0 is never dropped.
    """

    key: str
    title: str
    width: int
    right: bool = False
    grows: int = 0
    rank: int = 0
    most: int = 999


FieldT = TypeVar("FieldT", bound=Field)


@dataclass(frozen=True, slots=True)
class Table(Generic[FieldT]):
    """The columns that a width has room for, and how wide each is there. `gap`: spaces between
    two."""

    fields: tuple[FieldT, ...]
    widths: tuple[int, ...]
    gap: int = 2

    @property
    def total(self) -> int:
        """Columns of the terminal that a row takes."""
        return sum(self.widths) + self.gap * (len(self.widths) - 1)

    def columns(self) -> Iterator[tuple[FieldT, int]]:
        """Each column with its width, from left to right."""
        return zip(self.fields, self.widths, strict=True)

    def width(self, key: str) -> int:
        """The width of the column of that name; 0 where it has no room."""
        return next((width for field, width in self.columns() if field.key == key), 0)

    def at(self, x: int) -> FieldT | None:
        """The column at that offset; the gap after a column belongs to it."""
        start = 0
        for field, width in self.columns():
            if start <= x < start + width + self.gap:
                return field
            start += width + self.gap
        return None

    def titles(self) -> Line:
        """The row of titles."""
        return self.line({field.key: (field.title, "heading") for field in self.fields})

    def line(self, cells: Mapping[str, Span], ellipsis: str = "…") -> Line:
        """A row of these texts with their styles."""
        spans: list[Span] = []
        for number, (field, width) in enumerate(self.columns()):
            if number:
                spans.append((" " * self.gap, ""))
            text, style = cells[field.key]
            spans.append((fit(text, width, field.right, ellipsis), style))
        return tuple(spans)


def table_for(fields: Sequence[Field], width: int) -> Table[Field]:
    """As many columns as fit, with two spaces between them; columns that grow get the remaining
    room."""
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
