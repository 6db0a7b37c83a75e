"""Tables and headings in Markdown, so that a text from the code cannot break the page around it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def head(title: str, source: str, *paragraphs: str) -> list[str]:
    """The first lines of a page. `source`: the file in which a reader changes what the page
    says.
    """
    lines = [f"# {title}", ""]
    for text in paragraphs:
        lines += [text, ""]
    return [*lines, f"Source: `{source}`.", ""]


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table, with an empty line behind it."""
    lines = [_row(titles), _row(["---"] * len(titles))]
    return [*lines, *(_row([cell(text) for text in row]) for row in rows), ""]


def cell(text: str) -> str:
    """A text as it can be in a cell: one line, and no bar that ends the cell."""
    return text.replace("|", "\\|").replace("\n", " ").strip()


def code(text: str) -> str:
    """A text in the font of code; an empty one stays empty."""
    return f"`{text}`" if text else ""


def listed(texts: Iterable[str]) -> list[str]:
    """A bullet list; what follows a line break in an item is a command."""
    lines: list[str] = []
    for text in texts:
        sentence, _, command = text.partition("\n")
        lines.append(f"- {sentence}")
        if command:
            lines += ["", *fenced(command.split("\n"), "text", "  ")]
    return [*lines, ""]


def fenced(lines: Iterable[str], language: str, indent: str = "") -> list[str]:
    """A block of code."""
    return [f"{indent}```{language}", *(f"{indent}{line}" for line in lines), f"{indent}```", ""]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
