"""The help: first the columns, signs and words of the view in front, then the keys."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ddtop.metrics import METRICS
from ddtop.model.facts import RankFacts
from ddtop.present.map import CLASSES, HEALTHY, glyph_of
from ddtop.present.numbers import COLUMNS, state_text
from ddtop.present.text import (
    ACTIVITY_LETTERS,
    STATE_MEANINGS,
    STATE_STYLES,
    UNICODE,
    Glyphs,
    Line,
    Page,
    clean,
    clip_line,
    wrap,
)
from ddtop.say.said import that_hold
from ddtop.wire.records import ACTIVITIES
from ddtop.words.sentences import ranks_text

# -- Every action and its key: one table for the help, the key bar and the command palette
#
# `run` is the action as Textual writes it, with `app.` before those of the app; the others are the
# main screen's.


RANKS, MAP, GROUPS, STACKS, HOSTS, EVENTS = "ranks", "map", "groups", "stacks", "hosts", "events"


@dataclass(frozen=True, slots=True)
class ViewName:
    """One of the views: `key` shows it, `meaning` is what it shows, in a line."""

    key: str
    name: str
    meaning: str


VIEWS = (
    ViewName("1", RANKS, "one row per rank"),
    ViewName("2", MAP, "one cell per rank: thousands of ranks at a glance"),
    ViewName("3", GROUPS, "each process group: its progress, and which ranks are behind"),
    ViewName("4", STACKS, "the latest stacks, merged"),
    ViewName("5", HOSTS, "CPU, memory and /dev/shm of each host, and the worst of its ranks"),
    ViewName("6", EVENTS, "what happened: findings, ranks, restarts, stacks"),
)
"""In the order of their keys; Tab goes through them in this order."""


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that can be done.

    `keys`: as Textual names them, separated by commas. `shown`: as people write them. `label`: a
    word or two for the key bar. `meaning`: a line for the help. `views`: the views in which it
    works; empty means all. `listed`: it has its own line in the help.
    """

    name: str
    keys: str
    shown: str
    label: str
    meaning: str
    run: str
    views: tuple[str, ...] = ()
    listed: bool = True


_PICKED = (RANKS, MAP)

ACTIONS = (
    *(
        Action(
            f"view-{view.name}", view.key, view.key, view.name, view.meaning, f"view('{view.name}')"
        )
        for view in VIEWS
    ),
    Action(
        "next-view",
        "tab",
        "Tab",
        "next view",
        "the next view; Shift+Tab: the previous one",
        "next_view(1)",
    ),
    Action(
        "view-before",
        "shift+tab",
        "Shift+Tab",
        "prev view",
        "the previous view",
        "next_view(-1)",
        listed=False,
    ),
    Action(
        "why",
        "e",
        "e",
        "why",
        "the findings with evidence and advice; a click on the verdict does the same",
        "why",
    ),
    Action("fold", "z", "z", "fold", "fold the findings at the top to one line, or unfold", "fold"),
    Action(
        "filter",
        "slash",
        "/",
        "filter",
        "filter the rows, or search: words, state:blocked host:node3 rank:0-7 tp:3 step>300 gpu<20",
        "filter",
    ),
    Action(
        "clear-filter",
        "escape",
        "Esc",
        "all rows",
        "clear the filter",
        "clear_filter",
        listed=False,
    ),
    Action(
        "sort-next",
        "greater_than_sign,f6",
        "< > F6",
        "sort",
        "sort by the next column to the left or right; culprits come first by default",
        "sort(1)",
        (RANKS,),
    ),
    Action(
        "sort-before",
        "less_than_sign",
        "<",
        "sort back",
        "sort by the next column to the left",
        "sort(-1)",
        (RANKS,),
        listed=False,
    ),
    Action(
        "reverse",
        "R",
        "R",
        "reverse",
        "reverse the sort order",
        "reverse",
        (RANKS,),
    ),
    Action(
        "stacks",
        "d",
        "d",
        "stacks",
        "stacks of the tagged ranks or the rank under the cursor, merged",
        "stacks('these')",
    ),
    Action("stacks-all", "D", "D", "all stacks", "stacks of all ranks, merged", "stacks('all')"),
    Action(
        "signal",
        "f9,s",
        "F9 s",
        "signal",
        "take stacks by signal, or send another signal, to these ranks; asks first",
        "signals",
        _PICKED,
    ),
    Action(
        "columns",
        "c",
        "c",
        "columns",
        "choose which columns are shown if there is room",
        "columns",
        (RANKS,),
    ),
    Action(
        "colour-by",
        "m",
        "m",
        "colour by",
        "colour the map by state, step time, communication wait, CPU, GPU use, memory, power, heat;"
        " M: back",
        "colour_by(1)",
        (MAP,),
    ),
    Action(
        "colour-before",
        "M",
        "M",
        "prev colour",
        "colour the map by the previous number",
        "colour_by(-1)",
        (MAP,),
        listed=False,
    ),
    Action(
        "follow",
        "F",
        "F",
        "follow",
        "keep the cursor on the rank at fault, as the verdict changes",
        "follow",
        (RANKS,),
    ),
    Action(
        "more-panels",
        "plus",
        "+ _",
        "room",
        "more room for the panels, or for the rows of the ranks; at their ends the rest is hidden",
        "enlarge(1)",
        (RANKS,),
    ),
    Action(
        "more-rows",
        "underscore",
        "_",
        "more rows",
        "more room for the rows of the ranks",
        "enlarge(-1)",
        (RANKS,),
        listed=False,
    ),
    Action(
        "compare",
        "equals_sign",
        "=",
        "compare",
        "this rank beside a healthy one of its group, or the two tagged ranks side by side",
        "compare",
        _PICKED,
    ),
    Action(
        "log",
        "L",
        "L",
        "log",
        "what this rank has written last to its standard output and error, if they are files",
        "log",
        _PICKED,
    ),
    Action(
        "next-problem",
        "n",
        "n N",
        "next problem",
        "the next or previous rank that is not healthy",
        "problem(1)",
        (RANKS,),
    ),
    Action(
        "problem-before",
        "N",
        "N",
        "prev problem",
        "the previous rank that is not healthy",
        "problem(-1)",
        (RANKS,),
        listed=False,
    ),
    Action(
        "copy",
        "y",
        "y",
        "copy",
        "copy pid, host, command, line, stack of this rank, or what is wrong (OSC 52)",
        "copy",
    ),
    Action(
        "edit",
        "o",
        "o",
        "open source",
        "open this rank's current line in $EDITOR",
        "edit",
        _PICKED,
    ),
    Action(
        "save-text",
        "w",
        "w W",
        "save screen",
        "save the screen as text; W: as a picture (SVG)",
        "app.save_screen('txt')",
    ),
    Action(
        "save-svg",
        "W",
        "W",
        "save picture",
        "save the screen as a picture (SVG)",
        "app.save_screen('svg')",
        listed=False,
    ),
    Action(
        "palette",
        "ctrl+p,colon",
        "Ctrl+P :",
        "commands",
        "find any command, column, rank or finding by its words; or stacks rank:0-7 in one line",
        "app.palette",
    ),
    Action(
        "back-5-s", "left_square_bracket", "[", "5 s back", "5 s back in time", "app.travel(-5)"
    ),
    Action(
        "on-5-s", "right_square_bracket", "]", "5 s forward", "5 s forward in time", "app.travel(5)"
    ),
    Action(
        "back-minute",
        "left_curly_bracket",
        "{",
        "a minute back",
        "a minute back in time",
        "app.travel(-60)",
    ),
    Action(
        "on-minute",
        "right_curly_bracket",
        "}",
        "a minute forward",
        "a minute forward in time",
        "app.travel(60)",
    ),
    Action(
        "critical-before",
        "left_parenthesis",
        "( )",
        "previous critical",
        "to the first picture of the previous or next critical finding",
        "app.travel_to_critical(-1)",
    ),
    Action(
        "next-critical",
        "right_parenthesis",
        ")",
        "next critical",
        "to the first picture of the next critical finding",
        "app.travel_to_critical(1)",
        listed=False,
    ),
    Action(
        "now", "backslash", "\\", "now", "to now, or to the end of a recording", "app.travel_back"
    ),
    Action(
        "freeze",
        "p",
        "p",
        "freeze",
        "freeze the picture; ddtop still watches the job",
        "app.freeze",
    ),
    Action(
        "less-often", "i", "i I", "less often", "look less often, or more often", "app.interval(1)"
    ),
    Action(
        "more-often", "I", "I", "more often", "look more often", "app.interval(-1)", listed=False
    ),
    Action(
        "theme",
        "t",
        "t",
        "theme",
        "dark, light, the terminal's own colours, no colours",
        "app.next_theme",
    ),
    Action(
        "jobs",
        "J",
        "J",
        "jobs",
        "back to the list of jobs, if ddtop started with it",
        "app.to_list",
    ),
    Action(
        "next-program",
        "P",
        "P",
        "program",
        "the next program of the same system",
        "app.next_program",
    ),
    Action(
        "redraw",
        "ctrl+l",
        "Ctrl+L",
        "redraw",
        "redraw everything, after other programs wrote here",
        "app.redraw",
    ),
    Action(
        "stop",
        "ctrl+z",
        "Ctrl+Z",
        "stop",
        "stop and return to the shell; fg continues",
        "app.suspend_process",
    ),
    Action("help", "question_mark", "?", "help", "what this view shows, and all keys", "app.help"),
    Action("quit", "q", "q", "quit", "quit; on a page: back, like Esc", "app.quit"),
)

MOVES = (
    ("up down j k", "move; PgUp PgDn Home End too, and the mouse wheel"),
    ("Enter", "open what is under the cursor; a double click too"),
    ("Space", "on the ranks: tag one"),
    ("v T f", "on the stacks: classes or tree, other threads in full, all frames"),
    ("f", "on the hosts: the GPUs of all hosts, or only those that need attention"),
)
"""Keys that the lists handle themselves."""


KEY_NAMES = {
    "/": "slash",
    ":": "colon",
    "?": "question_mark",
    "+": "plus",
    "-": "minus",
    "=": "equals_sign",
    "_": "underscore",
    "<": "less_than_sign",
    ">": "greater_than_sign",
    "[": "left_square_bracket",
    "]": "right_square_bracket",
    "{": "left_curly_bracket",
    "}": "right_curly_bracket",
    "(": "left_parenthesis",
    ")": "right_parenthesis",
    "\\": "backslash",
    "Esc": "escape",
    "PgDn": "pagedown",
    "←": "left",
    "→": "right",
}
"""Textual's names of keys that are written as a sign."""


KEYS = (*MOVES, *((action.shown, action.meaning) for action in ACTIONS if action.listed))
"""All keys that work, for the help: the key as people write it, and what it does."""


# -- The texts of the help


Keys = Sequence[tuple[str, str]]
Items = tuple[tuple[str, str], ...]

RANK_PAGE, FINDING_PAGE, GROUP_PAGE, PAIR_PAGE = "a rank", "why", "a group", "two ranks"
LOG_PAGE = "a log"
PAGES = (RANK_PAGE, FINDING_PAGE, GROUP_PAGE, PAIR_PAGE, LOG_PAGE)

_GROUP_WORDS: Items = (
    ("FRONT", "the number of the last collective that any member has enqueued"),
    (
        "BEHIND",
        (
            "members that have not enqueued it while others wait for them, where they are, and for"
            " how long"
        ),
    ),
    ("RANKS", "its members; 0-56/8 is every eighth rank from 0 to 56"),
    ("WAITING", "how many members have waited for longer than in a normal step"),
    (
        "OP",
        ("the open collective with the bytes and types of its input; two entries mean a mismatch"),
    ),
    ("ENQUEUED", "the number of the last collective that these members have called"),
    ("COMPLETED", "the number of the last one that has completed on them"),
    ("OPEN", "how long a call has been open there without progress"),
)
_TOPICS: dict[str, tuple[str, Items]] = {
    RANKS: (
        (
            "One row per rank. While something is wrong, the ranks at fault come first, then the"
            " ranks that wait; otherwise rows are sorted by number. The culprit's whole row stands"
            " out. Values older than 3 s are dim, and HEARD says how old they are. LAST SECONDS"
            " has a cell a second: its height is the share at work, its sign or the colour behind"
            " it what the rest went to. Below are the panels of the finding: where the rank at"
            " fault is, who waits for whom, and what it lacks; of a healthy job its numbers,"
            " compared with earlier."
        ),
        (),
    ),
    MAP: (
        (
            "One cell per rank, a tile per host, as large as the screen allows. The name of a host"
            " has the colour of its worst rank. A larger job has two ranks per cell, one above the"
            " other; a still larger job shows the worst of several ranks, and the line above the"
            " keys says of how many. A rank at fault has its sign in alarm at any size. A rank"
            " that is healthy again changes its sign when two looks agree. n and N go to the next"
            " and previous rank that is not healthy. The line below the map tells the rank under"
            " the mouse, or under the cursor. m colours the cells by a number instead, from the"
            " best value to the worst, and writes it into cells with room. What is bad depends on"
            " the number: the lowest communication wait and GPU use, the CPU or power farthest"
            " from the others, else the highest. The line above the map names the rank that"
            " stands out. Stragglers and ranks at fault keep their sign."
        ),
        (),
    ),
    GROUPS: (
        (
            "One row per process group. Groups whose ranks have made no progress for 5 s come"
            " first, and the others are sorted by name. Enter shows the members by what they do."
            " The line on top says who holds up whom: behind the first arrow are the groups that"
            " wait for the ranks at fault, behind the next one those that wait for these ranks."
            " Gloo also numbers sends and receives; they are not counted here."
        ),
        _GROUP_WORDS,
    ),
    STACKS: (
        (
            "The latest stacks, taken by you, by someone else, or because ranks made no progress."
            " Ranks with the same stack form one class. Read the one that differs from the others."
        ),
        (),
    ),
    HOSTS: (
        (
            "One row per host, as its relay reports it once a second. Hosts with a rank at fault"
            " come first, and below them their GPUs. Of the other hosts only GPUs with a problem"
            " are listed; f lists them all. Enter shows only the ranks of that host."
        ),
        (
            ("WORST RANK", "the state and number of its worst rank"),
            ("CPU", "use of all its cores, by any process (check: top)"),
            ("RANKS' CORES", "cores that its ranks and their children use"),
            ("MEMORY", "in use and total (check: free)"),
            (
                "/dev/shm",
                "in use and total; DataLoader workers pass batches through it (check: df /dev/shm)",
            ),
            (
                "GPUS",
                (
                    "their number, average use and memory; 7/8 wait: 7 of 8 only wait in NCCL"
                    " (check: nvidia-smi)"
                ),
            ),
            (
                "GPU 3",
                (
                    "a GPU of the host above: use, memory, power, heat, its ranks, what is wrong,"
                    " processes that belong to no rank"
                ),
            ),
            (
                "wait",
                (
                    "shown instead of the use: NCCL's kernel spins there, at low power, until"
                    " another rank arrives"
                ),
            ),
            (
                "REPORTS",
                (
                    "only if those of a host do not arrive: late, lost, or cut off from the host"
                    " that collects them"
                ),
            ),
            ("RELAY", "what ddtop's own relay uses there: share of one core, memory"),
            ("DROPPED", "records that the relay dropped or could not read"),
            ("HEARD", "how old its last report is"),
        ),
    ),
    EVENTS: (
        (
            "What happened, newest last: findings that began and ended, ranks that started and"
            " ended, restarts, stacks. The list follows new events until you move up; End follows"
            " them again. Enter shows one event in full."
        ),
        (("STOOD", "how long a finding lasted, or has lasted so far"),),
    ),
    RANK_PAGE: (
        (
            "Everything that ddtop knows about one rank. The lines at the top show one value per"
            " second, scaled from zero to the largest; the smallest and largest values are beside"
            " them."
        ),
        (),
    ),
    GROUP_PAGE: (
        "Members of one process group by what they do. The ranks furthest behind come first.",
        _GROUP_WORDS,
    ),
    PAIR_PAGE: (
        (
            "A rank beside a healthy one of its group, or the two that were tagged: their numbers,"
            " those that differ in bold, what they did in the last seconds, and where they are."
            " Left and right choose the other rank."
        ),
        (),
    ),
    LOG_PAGE: (
        (
            "The end of what a rank has written to standard output and standard error, if these are"
            " files that this host can read. What looks like a secret is redacted. The page follows"
            " the end until you scroll up; End follows again."
        ),
        (),
    ),
    FINDING_PAGE: (
        (
            "The findings, worst first. One of them is open; left and right open another."
            " Consequences are folded under their cause, so one root cause is one finding."
        ),
        (
            ("evidence", "the numbers and stack lines behind the verdict"),
            ("at fault", "the ranks where all waits end"),
            ("since", "when the problem began, not when ddtop saw it"),
        ),
    ),
}
_WITH_STATES = frozenset({RANKS, MAP, HOSTS, GROUPS, GROUP_PAGE, RANK_PAGE})


def help_lines(
    width: int,
    glyphs: Glyphs = UNICODE,
    topic: str = RANKS,
    own_keys: Keys = (),
    changed: Mapping[str, str] | None = None,
) -> list[Line]:
    """The keys of the topic's view, what the view shows, and all keys; for the ranks also every
    column with how to check it. `changed`: the user's own keys, by the names of actions."""
    page, changed = Page(width, glyphs), changed or {}
    own = {action.shown.split()[0]: changed.get(action.name, "") for action in ACTIONS}
    here = "this page" if topic in PAGES else f"the {topic} view"
    if own_keys:
        page.heading(f"keys of {here}")
    for key, meaning in own_keys:
        page.item(own.get(key.split()[0]) or key, meaning, label_style="key")
    text, items = _TOPICS.get(topic, _TOPICS[RANKS])
    page.heading(f"what {'this page' if topic in PAGES else topic} shows")
    page.text(text, "", "  ")
    for label, meaning in items:
        page.item(label, meaning)
    if topic in (RANKS, RANK_PAGE):
        _letters(page)
    if topic == MAP:
        _classes(page)
    elif topic in _WITH_STATES:
        _states(page)
    page.heading("all keys")
    for key, meaning in KEYS:
        page.item(own.get(key.split()[0]) or key, meaning, label_style="key")
    if topic in (RANKS, RANK_PAGE):
        _columns(page)
    return page.lines


def _classes(page: Page) -> None:
    page.heading("signs")
    for code, state_class in reversed(list(enumerate(CLASSES))):
        page.add(
            (f"  {glyph_of(code, page.glyphs)} {state_class.word:<11}", state_class.style),
            (_meaning(state_class.word), ""),
        )


def _meaning(word: str) -> str:
    if word == CLASSES[HEALTHY].word:
        return "runs, or waits for a moment"
    own = {
        "finished": "its process ended with exit code 0",
        "behind": "waits for ranks that wait for the rank at fault",
    }
    if word in own:
        return own[word]
    return next(meaning for state, meaning in STATE_MEANINGS.items() if state.value == word)


def _states(page: Page) -> None:
    page.heading("states")
    for state, meaning in STATE_MEANINGS.items():
        page.add((f"  {state_text(state, page.glyphs):<12}", STATE_STYLES[state]), (meaning, ""))


def _columns(page: Page) -> None:
    page.heading("columns")
    metrics = {metric.name: metric for metric in METRICS}
    for column in COLUMNS:
        metric = metrics[column.metric]
        unit = f" ({metric.unit})" if metric.unit else ""
        page.items(
            (column.title, f"{metric.meaning}{unit}"),
            ("", f"from {metric.source}", "dim"),
            ("", f"check: {metric.check}" if metric.check else "", "dim"),
        )


def _letters(page: Page) -> None:
    page.heading("letters in PHASES")
    pairs = zip(ACTIVITY_LETTERS, ACTIVITIES, strict=True)
    page.text(", ".join(f"{letter} {name}" for letter, name in pairs), "", "  ")


# -- The signals that a user can send to a rank, and what each does to a program that does not
#    handle it


STACKS_SIGNAL = None
"""The first entry of the menu: the dump signal, and only for ranks that it cannot crash."""
SIGNALS: tuple[tuple[signal.Signals | None, str], ...] = (
    (STACKS_SIGNAL, "by signal, even of a rank in which C code holds the GIL"),
    (signal.SIGTERM, "asks it to end; the launcher sends this to the others"),
    (signal.SIGINT, "like Ctrl-C: KeyboardInterrupt in Python"),
    (signal.SIGHUP, "terminal closed: ends it"),
    (signal.SIGQUIT, "ends it with a core dump"),
    (signal.SIGKILL, "ends it at once, without clean-up"),
    (signal.SIGSTOP, "stops it where it is; the others will wait for it"),
    (signal.SIGCONT, "lets a stopped process continue"),
    (signal.SIGUSR1, "whatever the program does with it; by default ends it"),
    (signal.SIGUSR2, "whatever the program does with it; by default ends it"),
    (signal.SIGABRT, "ends it with a core dump, as abort() does"),
)
"""In the order in which they are offered."""
LISTED = 8
DISTURBS = (
    "only a rank in which C code holds the GIL, and its forked workers, get the signal. A C call"
    " that does not restart after a signal (sleep, poll) returns early there."
)


def why_no_signals(readonly: bool, ranks: Sequence[RankFacts], live: bool) -> str | None:
    """Why nothing can be sent; None if something can."""
    which = ranks_text([rank.rank for rank in ranks], 4)
    found = that_hold(
        (readonly, "this dashboard was started with --readonly: it cannot change the job"),
        (not live, "the job has ended: no process can get a signal"),
        (not ranks, "no rank is selected"),
        (not any(reachable(rank) for rank in ranks), f"{which}: no process is left"),
    )
    return found[0] if found else None


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
    if what is not STACKS_SIGNAL:
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
