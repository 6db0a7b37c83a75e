"""The signals that a user can send to a rank, and what each does to a program that does not handle
it."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence

from ddtop.model.state.facts import RankFacts
from ddtop.present.glyphs import UNICODE, Glyphs
from ddtop.present.text import Line, clean, clip_line, wrap
from ddtop.words.ranks import ranks_text

STACKS = None
"""The first entry of the menu: the dump signal, and only for ranks that it cannot crash."""
SIGNALS: tuple[tuple[signal.Signals | None, str], ...] = (
    (STACKS, "by signal, also of a rank in which C code holds the GIL"),
    (signal.SIGTERM, "asks it to end; what the launcher sends to the others"),
    (signal.SIGINT, "as Ctrl-C: KeyboardInterrupt in Python"),
    (signal.SIGHUP, "its terminal is gone: ends it"),
    (signal.SIGQUIT, "ends it with a core dump"),
    (signal.SIGKILL, "ends it at once, nothing is cleaned up"),
    (signal.SIGSTOP, "stops it where it is; the others will wait for it"),
    (signal.SIGCONT, "lets a stopped process go on"),
    (signal.SIGUSR1, "whatever the program made of it; ends it if it made nothing"),
    (signal.SIGUSR2, "whatever the program made of it; ends it if it made nothing"),
    (signal.SIGABRT, "ends it with a core dump, as abort() does"),
)
"""In the order in which they are offered."""
LISTED = 8
DISTURBS = (
    "only a rank in which C code holds the GIL, and its forked workers, get the signal. A call in C"
    " that does not restart after a signal (sleep, poll) returns early there."
)


def why_no_signals(readonly: bool, ranks: Sequence[RankFacts], live: bool) -> str | None:
    """Why nothing can be sent; None if something can."""
    if readonly:
        return (
            "this dashboard was started with --readonly: nothing may be done to the job from here"
        )
    if not live:
        return "the job has ended: there is no process to send a signal to"
    if not ranks:
        return "no rank is selected"
    if not any(reachable(rank) for rank in ranks):
        return f"{ranks_text([rank.rank for rank in ranks], 4)}: no process is left"
    return None


def reachable(rank: RankFacts) -> bool:
    """Whether it has a process to which a signal can be sent."""
    return not rank.gone and rank.pid is not None


def menu_lines(
    ranks: Sequence[RankFacts], cursor: int, width: int, glyphs: Glyphs = UNICODE
) -> list[Line]:
    """The list of signals, with the one under the cursor marked."""
    lines: list[Line] = [*_wrapped(f"a signal to {_whom(ranks)}", width, "title"), ()]
    for number, (one, meaning) in enumerate(SIGNALS):
        here = number == cursor
        lead = f"  {glyphs.arrow} " if here else " " * (len(glyphs.arrow) + 3)
        name = f"{one.name.removeprefix('SIG'):<5} {one.value:>2}" if one else "stacks  "
        line: Line = (
            (lead, "key"),
            (name, "bold" if here else ""),
            (f"  {meaning}", "" if here else "dim"),
        )
        lines.append(clip_line(line, width, glyphs.ellipsis))
    return lines


def question_lines(
    ranks: Sequence[RankFacts], what: signal.Signals | None, width: int, glyphs: Glyphs = UNICODE
) -> list[Line]:
    """The question before a signal is sent, with all processes that it would reach."""
    asked, meaning = f"take the stacks of {_whom(ranks)} by signal?", DISTURBS
    if what is not STACKS:
        asked, meaning = f"send {what.name} to {_whom(ranks)}?", dict(SIGNALS)[what]
    lines: list[Line] = [*_wrapped(asked, width, "warning")]
    lines += [*_wrapped(f"{meaning[:1].upper()}{meaning[1:]}", width, "dim"), ()]
    for rank in ranks[:LISTED]:
        script = clean(rank.hello.script) if rank.hello else ""
        text = f"  rank {rank.rank}  pid {rank.pid}  {clean(rank.host or '')}  {script}"
        lines.append(clip_line(((text.rstrip(), ""),), width, glyphs.ellipsis))
    if len(ranks) > LISTED:
        lines.append(((f"  and {len(ranks) - LISTED} more", ""),))
    return [*lines, (), (("y", "key"), (" sends it, any other key does not", "dim"))]


def _whom(ranks: Iterable[RankFacts]) -> str:
    return ranks_text([rank.rank for rank in ranks], 6)


def _wrapped(text: str, width: int, style: str) -> list[Line]:
    return [((part, style),) for part in wrap(clean(text), width)] if text else []
