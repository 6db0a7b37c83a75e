"""What a rank has written last to its standard output and its standard error."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from ddtop.follow.log_tail import Tail, Wanted
from ddtop.model.facts import RankFacts
from ddtop.present.text import UNICODE, Glyphs, Line, Page, clean, clip_line

Read = Callable[[Wanted], Tail | None]
"""Returns the end of a file; None until it has been read."""
_FILE = re.compile(r"/(?!dev/)")
NAMES = ("standard output", "standard error")
HOW = "; with torchrun --log-dir LOGS, or > FILE 2>&1, its end is shown here"


def _outputs(rank: RankFacts) -> Iterator[tuple[str, str, Wanted]]:
    """Each output: what it is called, where it leads, and the file to read."""
    paths, hello = rank.process.outputs, rank.hello
    started = hello.started_unix_ns if hello is not None else 0
    for number, (name, path) in enumerate(zip(NAMES, paths, strict=False), 1):
        if path not in paths[: number - 1]:
            both = " and ".join(NAMES) if paths[number:] == (path,) else name
            yield both, path, (path, number, rank.pid or 0, started)


def log_lines(rank: RankFacts, read: Read, width: int, glyphs: Glyphs = UNICODE) -> list[Line]:
    """The ends of both, or why they cannot be shown."""
    page = Page(width, glyphs)
    if not rank.process.outputs:
        page.text(f"what rank {rank.rank} writes to is not known yet", "dim")
    for name, path, wanted in _outputs(rank):
        page.heading(f"{name} of rank {rank.rank}: {clean(path)}")
        if not _FILE.match(path):
            kind = "terminal" if path.startswith(("/dev/pts", "/dev/tty")) else "pipe"
            what = "thrown away" if path == "/dev/null" else f"a {kind}, which only one can read"
            page.text(f"it is {what}{HOW}", "dim", "  ")
            continue
        tail = read(wanted)
        problem = "being read ..." if tail is None else tail.problem
        if problem:
            where = f" (host {clean(rank.host)})" if rank.host and problem.endswith("host") else ""
            page.text(problem + where, "dim", "  ")
        for line in tail.lines if tail is not None else ():
            page.add((clean(line), ""))
    return page.lines


def last_lines(rank: RankFacts, read: Read, width: int, rows: int, glyphs: Glyphs) -> list[Line]:
    """The last lines of the last of its files that has any: errors are in standard error."""
    for _, path, wanted in reversed(list(_outputs(rank))):
        tail = read(wanted) if _FILE.match(path) else None
        lines = [line for line in tail.lines if line.strip()] if tail is not None else []
        if lines:
            return [clip_line(((clean(one), ""),), width, glyphs.ellipsis) for one in lines[-rows:]]
    return []
