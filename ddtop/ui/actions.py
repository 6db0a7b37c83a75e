"""Every action and its key: one table for the help, the key bar and the command palette.

`run` is the action as Textual writes it, with `app.` before those of the app; the others are the
main screen's.
"""

from __future__ import annotations

from dataclasses import dataclass

RANKS, MAP, GROUPS, STACKS, HOSTS, EVENTS = "ranks", "map", "groups", "stacks", "hosts", "events"


@dataclass(frozen=True, slots=True)
class ViewName:
    """One of the views: `key` shows it, `meaning` is what it shows, in a line."""

    key: str
    name: str
    meaning: str


VIEWS = (
    ViewName("1", RANKS, "one row a rank"),
    ViewName("2", MAP, "one cell a rank: thousands of ranks at a glance"),
    ViewName("3", GROUPS, "each process group: how far it is, who is behind, and in what"),
    ViewName("4", STACKS, "the stacks that were taken last, merged"),
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
        Action(f"view-{one.name}", one.key, one.key, one.name, one.meaning, f"view('{one.name}')")
        for one in VIEWS
    ),
    Action(
        "next-view",
        "tab",
        "Tab",
        "next view",
        "the next view; Shift+Tab: the one before",
        "next_view(1)",
    ),
    Action(
        "view-before",
        "shift+tab",
        "Shift+Tab",
        "view before",
        "the view before",
        "next_view(-1)",
        listed=False,
    ),
    Action(
        "why",
        "e",
        "e",
        "why",
        "the findings with evidence and advice; a click on the verdict too",
        "why",
    ),
    Action(
        "filter",
        "slash",
        "/",
        "filter",
        "filter the rows, or search: words; state:blocked host:node3 rank:0-7 tp:3 step>300 gpu<20",
        "filter",
    ),
    Action(
        "clear-filter",
        "escape",
        "Esc",
        "all rows",
        "take the filter away",
        "clear_filter",
        listed=False,
    ),
    Action(
        "sort-next",
        "greater_than_sign,f6",
        "< > F6",
        "sort",
        "sort by the column to the left, to the right; culprits come first by default",
        "sort(1)",
        (RANKS,),
    ),
    Action(
        "sort-before",
        "less_than_sign",
        "<",
        "sort back",
        "sort by the column to the left",
        "sort(-1)",
        (RANKS,),
        listed=False,
    ),
    Action(
        "stacks",
        "d",
        "d",
        "stacks",
        "stacks of the ranks tagged or under the cursor, merged",
        "stacks('these')",
    ),
    Action("stacks-all", "D", "D", "all stacks", "stacks of all ranks, merged", "stacks('all')"),
    Action(
        "signal",
        "f9,s",
        "F9 s",
        "signal",
        "stacks by signal, or another signal, to these ranks; asks before it does",
        "signals",
        _PICKED,
    ),
    Action(
        "columns",
        "c",
        "c",
        "columns",
        "which columns are shown where there is room",
        "columns",
        (RANKS,),
    ),
    Action(
        "colour-by",
        "m",
        "m",
        "colour by",
        "colour the map by state, step time, communication wait, GPU use, memory, heat; M: back",
        "colour_by(1)",
        (MAP,),
    ),
    Action(
        "colour-before",
        "M",
        "M",
        "colour before",
        "colour the map by the number before",
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
        "next-problem",
        "n",
        "n N",
        "next problem",
        "the next, the last rank that is not healthy",
        "problem(1)",
        (RANKS,),
    ),
    Action(
        "problem-before",
        "N",
        "N",
        "problem before",
        "the rank before that is not healthy",
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
        "open the line that this rank is at in $EDITOR",
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
        "ctrl+p",
        "Ctrl+P :",
        "commands",
        "find any command, column, rank or finding by its words",
        "app.palette",
    ),
    Action(
        "back-5-s", "left_square_bracket", "[", "5 s back", "5 s back in time", "app.travel(-5)"
    ),
    Action("on-5-s", "right_square_bracket", "]", "5 s on", "5 s forth in time", "app.travel(5)"),
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
        "a minute on",
        "a minute forth in time",
        "app.travel(60)",
    ),
    Action(
        "now", "backslash", "\\", "now", "to now, or to the end of a recording", "app.travel_back"
    ),
    Action(
        "freeze",
        "p",
        "p",
        "freeze",
        "freeze the picture; the job is watched all the same",
        "app.freeze",
    ),
    Action(
        "less-often", "plus,equals_sign", "+", "less often", "look less often", "app.interval(1)"
    ),
    Action("more-often", "minus", "-", "more often", "look more often", "app.interval(-1)"),
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
        "back to the list of jobs, where ddtop began with it",
        "app.to_list",
    ),
    Action(
        "redraw",
        "ctrl+l",
        "Ctrl+L",
        "redraw",
        "draw everything again, after others wrote here",
        "app.redraw",
    ),
    Action(
        "stop",
        "ctrl+z",
        "Ctrl+Z",
        "stop",
        "stop and give the shell back; fg goes on",
        "app.suspend_process",
    ),
    Action("help", "question_mark", "?", "help", "what this view shows, and all keys", "app.help"),
    Action("quit", "q", "q", "quit", "quit; on a page: back, as Esc", "app.quit"),
)

MOVES = (
    ("up down j k", "move; PgUp PgDn Home End too, and the mouse wheel"),
    ("Enter", "open what is under the cursor; a double click too"),
    ("Space", "on the ranks: tag one"),
    ("v T f", "on the stacks: as classes or as a tree, other threads in full, all frames"),
)
"""Keys that the lists handle themselves."""


def key_table() -> tuple[tuple[str, str], ...]:
    """All keys that work, for the help: the key as people write it, and what it does."""
    return (*MOVES, *((one.shown, one.meaning) for one in ACTIONS if one.listed))
