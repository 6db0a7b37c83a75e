"""The index of the decision pages, grouped by room.

A page is `NNN-short-title.md`. Its first line is `# NNN. Title`, its third is `Room: NAME`, and its
sections are some of `SECTIONS`, in that order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

SECTIONS = ("Decision", "Why", "Rejected")
ROOMS = {
    "agent": "The agent, in each rank",
    "agent/mpi": "The agent, MPI",
    "wire": "What travels",
    "relay": "The relay, on each host",
    "relay/hub": "The relay of a job on several hosts",
    "link": "The link: sockets and keys",
    "private": "Files and folders",
    "launch": "Launchers",
    "model": "The model: what is true now",
    "diagnosis": "The diagnosis: what is wrong",
    "follow": "Follow: what becomes of the frames of a job",
    "feeds": "Feeds: where the facts come from",
    "present": "Text and JSON",
    "ui": "The dashboard",
    "cli": "Commands",
    "sim": "Simulated jobs",
    "tests": "Tests",
    "project": "The project",
    "": "Not sorted yet",
}
"""Every room of which a page may be, with the heading of its group, in the order of the index. A
test refuses the last.
"""
_NAME = re.compile(r"(\d{3})-[a-z0-9-]+\.md")
_TITLE = re.compile(r"# (\d{3})[.:]? (.+)")


class PageError(ValueError):
    """A decision page does not have the form that the index needs."""


@dataclass(frozen=True)
class Decision:
    """One page: its number, title, room and file name."""

    number: int
    title: str
    room: str
    file: str


def page(folder: Path) -> str:
    """`decisions/index.md`.

    Raises:
        PageError: a page has no number or title, or a room that does not exist.
    """
    found = read(folder)
    lines = [
        "# Decisions",
        "",
        "Choices that the code cannot explain: a surprise, an alternative that failed, a measured",
        "trade-off. All other reasons stand in the code, and what was replaced stands in git. The",
        "pages are grouped by room.",
        "",
        "To add one, copy a page and take the next free number.",
        "",
    ]
    for room, heading in ROOMS.items():
        group = [one for one in found if one.room == room]
        if group:
            lines += [
                f"## {heading}",
                "",
                *(f"- [{one.number:03d}. {one.title}]({one.file})" for one in group),
                "",
            ]
    return "\n".join(lines)


def read(folder: Path) -> list[Decision]:
    """All pages, by number.

    Raises:
        PageError: a page has no number or title, or a room that does not exist.
    """
    return sorted(
        (_decision(path) for path in folder.glob("*.md") if path.name != "index.md"),
        key=lambda one: one.number,
    )


def _decision(path: Path) -> Decision:
    name, lines = _NAME.fullmatch(path.name), path.read_text(encoding="utf-8").split("\n")
    title = _TITLE.fullmatch(lines[0])
    if name is None or title is None or name[1] != title[1]:
        raise PageError(
            f"{path.name}: the first line must be `# NNN. Title` with the number of the file name"
        )
    room = next(
        (line.removeprefix("Room: ") for line in lines[:5] if line.startswith("Room: ")), ""
    )
    if room not in ROOMS:
        raise PageError(
            f"{path.name}: there is no room {room!r}, but {', '.join(filter(None, ROOMS))}"
        )
    return Decision(int(name[1]), title[2], room, path.name)
