"""What the command palette offers: every action with a key, and the commands without one.

It is not Textual's palette, because it has to be readable in 16 colours and in none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from textual.fuzzy import FuzzySearch

from ddtop.diagnosis.explain import PAGES
from ddtop.diagnosis.finding import Finding
from ddtop.metrics import METRICS
from ddtop.model.facts import Snapshot
from ddtop.present.filter import BY_VERDICT, parse_filter
from ddtop.present.help_text import ACTIONS
from ddtop.present.jobs import Row
from ddtop.present.map import metrics_of
from ddtop.present.numbers import COLUMNS
from ddtop.present.text import clean
from ddtop.ui.style import THEMES
from ddtop.words.sentences import ranks_text

_PRESETS = (
    ("only blocked ranks", "ranks that wait for others", "state:blocked"),
    (
        "only ranks that findings single out",
        "culprits, stragglers, and ranks with a warning",
        "state:culprit,straggler,warning",
    ),
    (
        "only silent or stopped ranks",
        "their agent does not report, or they are stopped",
        "state:silent,stopped",
    ),
    ("only ranks that are gone", "exited, killed, or never seen", "state:exited,killed,missing"),
)
_RANK = re.compile(r"(go to |open )?(?:rank )?(\d{1,7})")
_LINE = re.compile(r"(stacks|filter) (.*[:<>=].*)")
"""A command and the ranks that it is for, in the words of the filter."""
_THEME_WORDS = {
    "dark": "light text on dark",
    "light": "dark text on light",
    "ansi": "the terminal's own colours",
    "mono": "no colours",
}
_HIDDEN = ("clear-filter", "palette")
_FUZZY = FuzzySearch()


@dataclass(frozen=True, slots=True)
class Choice:
    """One entry: `run`: the action, as in `actions.Action`. `shown`: its key, if it has one."""

    name: str
    meaning: str
    run: str
    shown: str = ""


def commands(
    snapshot: Snapshot | None, findings: Sequence[Finding], programs: Sequence[Row] = ()
) -> tuple[Choice, ...]:
    """All commands that work now, the most useful first. `programs`: of the system of the job."""
    choices = [
        Choice(f"why: {finding.kind}", clean(finding.summary), f"finding({at})")
        for at, finding in enumerate(findings)
    ]
    choices += [
        Choice(
            f"program {clean(job.role)}",
            clean(health.sentence or health.word),
            f"app.program({job.entry.job!r})",
        )
        for job, health in programs
    ]
    choices += [
        Choice(
            f"view {action.label}" if action.name.startswith("view-") else action.label,
            action.meaning,
            action.run,
            action.shown,
        )
        for action in ACTIONS
        if action.listed and action.name not in _HIDDEN and not action.name.startswith("sort")
    ]
    meanings = {metric.name: metric.meaning for metric in METRICS}
    choices.append(
        Choice(
            "sort by verdict",
            "culprits first, then waiting ranks, then by number",
            f"sort_to('{BY_VERDICT}')",
        )
    )
    choices += [
        Choice(f"sort by {column.title}", meanings[column.metric], f"sort_to('{column.key}')")
        for column in COLUMNS
    ]
    choices += [
        Choice(name, f"{meaning}: {text}", f"filter_to('{text}')")
        for name, meaning, text in _PRESETS
    ]
    choices.append(Choice("all ranks", "clear the filter", "filter_to('')"))
    choices += [
        Choice(
            f"map by {number.scale.label}", "colour the map by it", f"colour_map('{number.key}')"
        )
        for number in (metrics_of(snapshot) if snapshot is not None else ())
    ]
    choices.append(Choice("map by state", "colour the map by the state", "colour_map('state')"))
    choices += [
        Choice(f"theme {name}", _THEME_WORDS[name], f"app.theme_to('{name}')") for name in THEMES
    ]
    if snapshot is not None and snapshot.ranks:
        choices.append(
            Choice("go to rank N", "type its number", f"go_to({snapshot.ranks[0].rank})")
        )
    choices += [
        Choice(f"explain {page.kind}", page.brief, f"explain('{page.kind}')")
        for page in PAGES.values()
    ]
    return tuple(choices)


def matching(choices: Sequence[Choice], text: str, snapshot: Snapshot | None) -> tuple[Choice, ...]:
    """The commands in which every word is found.

    Commands whose name begins with the typed text come first, then those with it in the name, then
    those with it in the meaning. If there are none, the letters may be anywhere in the name, in
    their order. A number means the rank with that number.
    """
    text = text.casefold().strip()
    words = text.split()

    def far(choice: Choice) -> int:
        name = choice.name.casefold()
        if name.startswith(text):
            return 0
        texts = (name, f"{name} {choice.meaning.casefold()}")
        return next((at for at, one in enumerate(texts, 1) if all(w in one for w in words)), 3)

    found = [choice for choice in sorted(choices, key=far) if far(choice) < 3]
    return (*_of_these(text, snapshot), *_ranks(text, snapshot), *found) or tuple(
        sorted(
            (choice for choice in choices if _FUZZY.match(text, choice.name)[0]),
            key=lambda choice: -_FUZZY.match(text, choice.name)[0],
        )
    )


def hits(name: str, text: str) -> set[int]:
    """The places in the name that the typed letters have found: all in a row, or else word by
    word."""
    words = text.split()
    whole = words and _FUZZY.match(" ".join(words), name)[1]
    return set(whole or (at for word in words for at in _FUZZY.match(word, name)[1]))


def _of_these(text: str, snapshot: Snapshot | None) -> Iterator[Choice]:
    """`stacks rank:0-7`, `filter state:blocked`: a command for some ranks in one line."""
    match = _LINE.fullmatch(text)
    wanted = parse_filter(match[2]) if match is not None else None
    if match is None or wanted is None or snapshot is None or wanted.problem:
        return
    if ranks := wanted.ranks_of(snapshot):
        run = {"stacks": "stacks_of", "filter": "filter_to"}[match[1]]
        yield Choice(text, ranks_text(ranks, 6), f"{run}({match[2]!r})")


def _ranks(text: str, snapshot: Snapshot | None) -> Iterator[Choice]:
    match = _RANK.fullmatch(text)
    if match is None or snapshot is None:
        return
    verb, number = match[1], int(match[2])
    if any(rank.rank == number for rank in snapshot.ranks):
        if verb != "open ":
            yield Choice(f"go to rank {number}", "put the cursor on it", f"go_to({number})")
        yield Choice(f"open rank {number}", "its page", f"open_rank({number})")
