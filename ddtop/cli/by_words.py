"""`ddtop attach --plain`: what changes in a job as lines of text, and typed words in place of keys.

For screen readers, logs, slow lines and terminals that cannot move the cursor. Nothing is drawn
twice, and no line depends on the one above it.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Mapping, Sequence

from ddtop.cli.errors import CommandError, did_you_mean
from ddtop.cli.output import echo, glyphs, width
from ddtop.cli.ranks import check_ranks, parse_ranks
from ddtop.cli.stacks_output import text_of
from ddtop.diagnosis.explain import explain
from ddtop.diagnosis.finding import Verdict
from ddtop.follow.look import Look, Source
from ddtop.grouped import grouped
from ddtop.model.facts import RankFacts, Snapshot
from ddtop.present.events import APPEARED, Event, event_line
from ddtop.present.explain import explain_text
from ddtop.present.filter import by_verdict
from ddtop.present.findings import banner_lines
from ddtop.present.now import now_age_s, now_text
from ddtop.present.plain import diagnose_text
from ddtop.present.stacks import Shape, answers, merged_of
from ddtop.present.text import clean, plain
from ddtop.thresholds import chosen
from ddtop.words.sentences import ranks_text
from ddtop.words.units import duration

READ_BYTES = 4096


class ByWords:
    """Reads words from standard input, and answers them; for one event loop."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._typed = b""
        self._listens, self._greeted = True, False
        self._asked: tuple[tuple[int, ...], str | None] | None = None
        """The ranks whose stacks were asked for (none: all), and the request before that."""

    def tell(self, event: Event) -> None:
        """Print an event, and what to do about it."""
        echo(event_line(event))
        if event.event == APPEARED and event.finding is not None and event.finding.advice:
            echo(f"to do: {clean(event.finding.advice)}")

    async def turn(self, look: Look) -> bool:
        """Answer what was typed. True: the user leaves."""
        if look.snapshot is None:
            return False
        if not self._greeted:
            self._greeted = True
            echo(_status(look.snapshot, look.verdict, ""))
            echo("each change is a line; type a word and Enter: " + ", ".join(WORDS))
        for line in self._lines():
            try:
                if await self._answer(line.split(), look, look.snapshot):
                    return True
            except CommandError as error:
                echo(str(error))
        self._show_stacks(look, look.snapshot)
        return False

    def _lines(self) -> list[str]:
        """The lines that were typed since the last call."""
        stdin = sys.stdin.fileno()
        # A job of the shell that reads its terminal from the background is stopped.
        background = os.isatty(stdin) and os.tcgetpgrp(stdin) != os.getpgrp()
        if not self._listens or background or not select.select([stdin], [], [], 0)[0]:
            return []
        data = os.read(stdin, READ_BYTES)
        self._listens = bool(data)
        *lines, self._typed = (self._typed + data).split(b"\n")
        return [line.decode(errors="replace") for line in lines]

    async def _answer(self, words: Sequence[str], look: Look, snapshot: Snapshot) -> bool:
        if not words:
            return False
        meant = [word for word in WORDS if word.startswith(words[0].lower())]
        word, given = meant[0] if len(meant) == 1 else words[0], "".join(words[1:])
        if word == STACKS:
            await self._ask_stacks(given, look, snapshot)
        elif word not in WORDS:
            why = f"could be {' or '.join(meant)}" if meant else "is not one of the words"
            echo(f"{word[:40]} {why}{did_you_mean(word, () if meant else WORDS)}; type help")
        elif word != QUIT:
            echo(_ANSWERS[word](snapshot, look.verdict, given).rstrip("\n"))
        return word == QUIT

    async def _ask_stacks(self, given: str, look: Look, snapshot: Snapshot) -> None:
        ranks = parse_ranks(given) if given else ()
        check_ranks(ranks, snapshot)
        why = await self._source.ask_stacks(ranks)
        if why is not None:
            echo(why)
            return
        self._asked = (ranks, look.dump.request if look.dump is not None else None)

    def _show_stacks(self, look: Look, snapshot: Snapshot) -> None:
        """Print the stacks that were asked for, once all have come."""
        asked, dump = self._asked, look.dump
        if asked is None or dump is None or dump.request == asked[1] or not dump.done:
            return
        self._asked = None
        found = answers(snapshot, dump.request, dump.asked_unix_ns, asked[0])
        merged = merged_of(found, look.verdict, snapshot)
        echo(text_of(merged, snapshot, look.verdict, Shape()), nl=False)
        if dump.refused is not None:
            echo(dump.refused)


def _status(snapshot: Snapshot, verdict: Verdict, _: str) -> str:
    lines = banner_lines(snapshot, verdict, width(), glyphs=glyphs())
    return "\n".join(plain(line) for line in lines)


def _ranks(snapshot: Snapshot, verdict: Verdict, _: str) -> str:
    """`ranks 0,1,3: blocked, all_reduce #65, for 34 s`: equal ranks are one line."""
    now = snapshot.time_unix_ns
    ranks = [snapshot.rank(number) for number in by_verdict(snapshot, verdict)]
    lines = []
    for text, equal in grouped((_doing(rank), rank) for rank in ranks).items():
        age_s = max(now_age_s(rank, now) or 0.0 for rank in equal)
        since = f", for {duration(age_s)}" if age_s >= 1 else ""
        lines.append(f"{ranks_text([rank.rank for rank in equal], 12)}: {text}{since}")
    return "\n".join(lines)


def _doing(rank: RankFacts) -> str:
    done = rank.progress.iteration
    words = (rank.state.value, now_text(rank), f"iteration {done}" if done is not None else "")
    return ", ".join(filter(None, words))


def _page(_: Snapshot, verdict: Verdict, kind: str) -> str:
    worst = str(verdict.findings[0].kind) if verdict.findings else ""
    page = explain(kind or worst, chosen())
    if page is not None:
        return explain_text(page, width())
    return f"there is no finding named {kind[:40]}" if kind else "nothing is wrong now"


STACKS, QUIT = "stacks", "quit"
WORDS: Mapping[str, str] = {
    "status": "how the job is, in a few lines",
    "why": "each finding with its evidence, and what to do",
    "ranks": "what each rank does; equal ones together, those at fault first",
    STACKS: "the stacks of all ranks, equal ones merged; of some: stacks 0,3-5",
    "explain": "what a kind means: explain straggler; without a kind, the worst one",
    "help": "these words",
    QUIT: "leave; the job goes on",
}
"""What may be typed; a beginning that only one of them has is enough."""
_ANSWERS: Mapping[str, Callable[[Snapshot, Verdict, str], str]] = {
    "status": _status,
    "why": lambda snapshot, verdict, _: diagnose_text(snapshot, verdict, width(), glyphs()),
    "ranks": _ranks,
    "explain": _page,
    "help": lambda *_: "\n".join(f"{word}: {text}" for word, text in WORDS.items()),
}
"""Each gets what was typed after the word, without spaces."""
