"""How a state is shown: one glyph, a word, and the name of a style.

The glyph and the word carry the state; the colour only repeats it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddtop.model.state.facts import RankFacts, State


@dataclass(frozen=True, slots=True)
class Glyphs:
    """One set of characters; every glyph is one column wide.

    `eighths`: the last cell of a bar, from one eighth to seven; empty if only whole cells can be
    drawn. `levels`: the cells of a sparkline from the smallest value to the largest; none fills its
    cell, so that two sparklines above each other do not touch. `hollow`: for a bar of time spent
    waiting.
    """

    states: dict[State, str]
    full: str
    eighths: str
    levels: str
    ellipsis: str
    rule: str
    arrow: str
    upright: str
    critical: str
    warning: str
    info: str
    bullet: str
    fork: str = "├"
    corner: str = "└"
    then: str = "›"
    finished: str = "✓"
    hollow: str = "░"


UNICODE = Glyphs(
    states={
        State.STARTING: "…",
        State.JOINING: "…",
        State.RUNNING: "·",
        State.WAITING: "◦",
        State.BLOCKED: "■",
        State.CULPRIT: "✖",
        State.STRAGGLER: "▲",
        State.WARNING: "!",
        State.SILENT: "?",
        State.STOPPED: "‖",
        State.EXITED: "✝",
        State.KILLED: "✝",
        State.MISSING: "∅",
        State.LOST: "⊘",
    },
    full="█",
    eighths="▏▎▍▌▋▊▉",
    levels="▁▂▃▄▅▆▇",
    ellipsis="…",
    rule="─",
    arrow="→",
    upright="│",
    critical="✖",
    warning="▲",
    info="·",
    bullet="·",
)

ASCII = Glyphs(
    states={
        State.STARTING: "~",
        State.JOINING: "~",
        State.RUNNING: ".",
        State.WAITING: "o",
        State.BLOCKED: "#",
        State.CULPRIT: "X",
        State.STRAGGLER: "^",
        State.WARNING: "!",
        State.SILENT: "?",
        State.STOPPED: "|",
        State.EXITED: "+",
        State.KILLED: "+",
        State.MISSING: "-",
        State.LOST: "%",
    },
    full="#",
    eighths="",
    levels="_.-=+*#",
    ellipsis="..",
    rule="-",
    arrow="->",
    upright="|",
    critical="X",
    warning="^",
    info=".",
    bullet="-",
    fork="|",
    corner="`",
    then=">",
    finished="=",
    hollow=":",
)

STATE_STYLES: dict[State, str] = {
    State.STARTING: "starting",
    State.JOINING: "starting",
    State.RUNNING: "dim",
    State.WAITING: "dim",
    State.BLOCKED: "blocked",
    State.CULPRIT: "culprit",
    State.STRAGGLER: "straggler",
    State.WARNING: "warning",
    State.SILENT: "silent",
    State.STOPPED: "silent",
    State.EXITED: "gone",
    State.KILLED: "gone",
    State.MISSING: "gone",
    State.LOST: "silent",
}

STATE_MEANINGS: dict[State, str] = {
    State.STARTING: "its agent is up, it has no process group yet",
    State.JOINING: "in init_process_group or MPI_Init",
    State.RUNNING: "makes progress",
    State.WAITING: "in a collective, not for long",
    State.BLOCKED: "waits longer than the limit: a victim, not the cause",
    State.CULPRIT: "others wait for it",
    State.STRAGGLER: "persistently last, the others pay for it",
    State.WARNING: "a warning singles it out",
    State.SILENT: "the process lives, its agent does not report",
    State.STOPPED: "stopped by a signal or a debugger (state T)",
    State.EXITED: "its process ended",
    State.KILLED: "a signal ended it",
    State.MISSING: "never seen",
    State.LOST: "nothing of its whole host is heard any more",
}


def state_style(rank: RankFacts) -> str:
    """The style of a rank's state; a rank that finished normally has no alarm style."""
    if rank.state is State.EXITED and rank.process.exit is not None and rank.process.exit.code == 0:
        return "dim"
    return STATE_STYLES[rank.state]


def glyphs_for(encoding: str | None, terminal: str = "") -> Glyphs:
    """The set that a terminal or pipe of that encoding can show. `terminal`: its TERM.

    The Linux console and hardware terminals read UTF-8, but their fonts have only few of our
    glyphs; all others look the same.
    """
    if terminal == "linux" or terminal.startswith("vt"):
        return ASCII
    return UNICODE if encoding and "utf" in encoding.lower().replace("-", "") else ASCII
