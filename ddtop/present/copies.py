"""Texts that a person may want to copy: facts of a rank, and the findings."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from ddtop.diagnosis.finding import Verdict
from ddtop.model.stacks.merge import merge
from ddtop.model.state.facts import RankFacts, Snapshot
from ddtop.present.glyphs import ASCII
from ddtop.present.stacks.lines import Around, Shape, stacks_lines
from ddtop.present.text import clean, plain

STACK_WIDTH = 160


@dataclass(frozen=True, slots=True)
class CopyItem:
    """One thing that can be copied: the `key` that does it, a word for it, and the text."""

    key: str
    label: str
    text: str


def copies_of(snapshot: Snapshot, verdict: Verdict, number: int | None) -> tuple[CopyItem, ...]:
    """The texts about this rank and the job that can be copied; unknown ones are left out."""
    found = [CopyItem("s", "sentence", _sentence(verdict))]
    if number is not None:
        rank = snapshot.rank(number)
        hello, place = rank.hello, rank.reported.place
        found += [
            CopyItem("p", "pid", "" if rank.pid is None else str(rank.pid)),
            CopyItem("h", "host", clean(rank.host or "")),
            CopyItem("c", "command", clean(shlex.join(hello.argv)) if hello else ""),
            CopyItem("l", "line", clean(f"{place.file}:{place.line}") if place else ""),
            CopyItem("k", "stack", _stack(rank)),
        ]
    return tuple(one for one in found if one.text)


def _sentence(verdict: Verdict) -> str:
    if not verdict.findings:
        return clean(verdict.calm)
    worst = verdict.findings[0]
    return "\n".join(clean(text) for text in (worst.summary, *worst.evidence, worst.advice) if text)


def _stack(rank: RankFacts) -> str:
    taken = rank.dump.stacks
    if taken is None or not taken.method:
        return ""
    merged = merge([taken, *rank.dump.worker_stacks])
    lines = stacks_lines(merged, STACK_WIDTH, ASCII, Around(), Shape())
    return "\n".join(plain(line) for line in lines)
