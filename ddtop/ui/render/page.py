"""A page of labelled lines: headings, items with a hanging indent, and tables of a few columns."""

from __future__ import annotations

from collections.abc import Sequence

from ddtop.present.glyphs import UNICODE, Glyphs
from ddtop.present.text import Line, cell_width, clip_line, fit, wrap

LABEL = 14


class Page:
    """Lines of at most `width` columns, collected from top to bottom."""

    def __init__(self, width: int, glyphs: Glyphs = UNICODE) -> None:
        self.width = max(width, 20)
        self.glyphs = glyphs
        self.lines: list[Line] = []

    def add(self, *spans: tuple[str, str]) -> None:
        """Add one line as it is, cut at the width."""
        self.lines.append(clip_line(spans, self.width, self.glyphs.ellipsis))

    def blank(self) -> None:
        """Add an empty line, but never two."""
        if self.lines and self.lines[-1]:
            self.lines.append(())

    def heading(self, text: str) -> None:
        """Start a section."""
        self.blank()
        self.add((text, "title"))

    def item(self, label: str, text: str, style: str = "", label_style: str = "dim") -> None:
        """Add a label and its text; nothing for an empty text: missing facts get no line."""
        if not text:
            return
        indent = 2 + LABEL
        for number, part in enumerate(wrap(text, self.width - indent)):
            lead = f"  {fit(label, LABEL)}" if number == 0 else " " * indent
            self.add((lead, label_style), (part, style))

    def text(self, text: str, style: str = "", lead: str = "") -> None:
        """Add a paragraph; `lead` is before its first line, the others are indented below it."""
        for number, part in enumerate(wrap(text, self.width - cell_width(lead))):
            self.add((lead if number == 0 else " " * cell_width(lead), style), (part, style))

    def table(
        self, titles: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]
    ) -> None:
        """Add a table. Columns are as wide as their widest cell; the last one is cut at the
        width."""
        if not rows:
            return
        widths = [
            max(cell_width(title), *(cell_width(row[index]) for row in rows))
            for index, title in enumerate(titles)
        ]
        for style, cells in (("heading", titles), *(("", row) for row in rows)):
            fitted = [fit(*part) for part in zip(cells, widths, right, strict=True)]
            self.add(("  " + "  ".join(fitted), style))
