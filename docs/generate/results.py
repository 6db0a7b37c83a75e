"""What was measured: the data in `docs/results`, the page with all of it, and one table in each
page that explains it.

A measurement keeps its day, version and conditions. The tables of a page are the first of its file:
in `proof.json` the newest number of each kind, which the others explain.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from docs.generate.markdown import head, listed, table

DOCS = Path(__file__).resolve().parents[1]
PAGES_WITH_TABLE = {
    "proof": "How often it is right",
    "cost": "What it costs",
    "scale": "How it grows",
}
"""The pages of `docs/explanation` that have data of the same name, with their titles."""
_TABLE = re.compile(
    r"(?<=<!-- made by `python -m docs\.generate` -->\n).*?(?=<!-- end -->\n)", re.DOTALL
)


class Measurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Some numbers that were measured together.

    `date` is a day or a month. `version` is empty where the numbers do not depend on one, and says
    so where it was not noted. A cell is Markdown.
    """

    what: str
    date: str
    version: str
    conditions: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def read(name: str) -> Sequence[Measurement]:
    """The measurements of a file, in its order.

    Raises:
        msgspec.ValidationError: a field is missing, unknown, or of another type.
    """
    data = (DOCS / "results" / f"{name}.json").read_bytes()
    return msgspec.json.decode(data, type=tuple[Measurement, ...])


def page() -> str:
    """`explanation/measurements.md`: all of them."""
    lines = head("All measurements", "docs/results", "What was measured, with its day and version.")
    for name, title in PAGES_WITH_TABLE.items():
        lines += [f"## {title}", ""]
        for one in read(name):
            version = f" Version: {one.version}." if one.version else ""
            lines += [f"### {one.what}", "", f"{one.date}.{version} {one.conditions}".strip(), ""]
            if one.rows:
                lines += table(one.columns, one.rows)
            lines += listed(one.notes) if one.notes else []
    return "\n".join(lines)


def with_table(name: str, text: str) -> str:
    """A page with the tables of its data: the first ones of the file, as many as it has places."""
    made = iter(read(name))

    def next_table(_: object) -> str:
        one = next(made)
        return "\n".join(["", *table(one.columns, one.rows), ""])

    return _TABLE.sub(next_table, text)


def write_tables() -> None:
    """Put the tables into the pages that explain them."""
    for name in PAGES_WITH_TABLE:
        path = DOCS / "explanation" / f"{name}.md"
        path.write_text(with_table(name, path.read_text(encoding="utf-8")), encoding="utf-8")
