"""The help: first the columns, signs and words of the view in front, then the keys."""

from __future__ import annotations

from collections.abc import Sequence

from ddtop.metrics import METRICS
from ddtop.present.glyphs import STATE_MEANINGS, STATE_STYLES, UNICODE, Glyphs
from ddtop.present.table.bars import ACTIVITY_LETTERS
from ddtop.present.table.columns import COLUMNS, state_text
from ddtop.present.table.rank_class import CLASSES, HEALTHY, glyph_of
from ddtop.present.text import Line
from ddtop.ui import actions
from ddtop.ui.render.page import Page
from ddtop.wire.records import ACTIVITIES

Keys = Sequence[tuple[str, str]]
Items = tuple[tuple[str, str], ...]

RANK_PAGE, FINDING_PAGE, GROUP_PAGE = "a rank", "why", "a group"

_GROUP_WORDS: Items = (
    ("FRONT", "the number of the last collective that any member has enqueued"),
    (
        "BEHIND",
        (
            "members that have not enqueued it while others wait for them, where they are, and for"
            " how long"
        ),
    ),
    ("OP", "the collective that is open, its input's bytes and types; two of them are a mismatch"),
    ("ENQUEUED", "the number of the last collective that these members have called"),
    ("COMPLETED", "the number of the last one that is complete on them"),
    ("OPEN", "for how long something has been open there without moving"),
)
_TOPICS: dict[str, tuple[str, Items]] = {
    actions.RANKS: (
        (
            "One row a rank. While something is wrong those at fault stand first, then those that"
            " wait; else by number. The culprit's row stands out as a whole. What is older than 3 s"
            " is dim, HEARD says how old it is. The job strip below the rows has the numbers of the"
            " whole job, each with the ends of its scale, and against before; then the last events."
        ),
        (),
    ),
    actions.MAP: (
        (
            "One cell a rank, host by host, or in rank order where hosts have no room; then two"
            " ranks a cell, one above the other; then one cell for the worst of several ranks, and"
            " the line above the keys says of how many. A rank that is at fault has its sign in"
            " alarm at any size. A state that is healthy again shows when two looks agree. n and N"
            " go to the next and the last rank that is not healthy. m colours the cells by a number"
            " instead: the line above them says which colour is which value, and which rank is the"
            " one to look at; then n goes to ranks of the worst colour."
        ),
        (),
    ),
    actions.GROUPS: (
        (
            "One row a process group. Groups in which ranks have made no progress for 5 s come"
            " first, the others are sorted by name. Enter shows the members by what they do. Gloo"
            " numbers sends and receives too; they are not counted here."
        ),
        _GROUP_WORDS,
    ),
    actions.STACKS: (
        (
            "The stacks that were taken last, by you, by somebody else, or because ranks made no"
            " progress. Ranks with the same stack are one class; read the one that differs from the"
            " others."
        ),
        (),
    ),
    actions.HOSTS: (
        (
            "One row a host, as its relay reports it once a second; hosts with a rank at fault come"
            " first. Enter shows its ranks only."
        ),
        (
            ("WORST RANK", "the state of its worst rank, and the number of that rank"),
            ("CPU", "use of all its cores, by anybody (check: top)"),
            ("RANKS' CORES", "cores that its ranks and their children use"),
            ("MEMORY", "in use, of all (check: free)"),
            (
                "/dev/shm",
                "in use, of all; DataLoader workers pass batches through it (check: df /dev/shm)",
            ),
            (
                "GPUS",
                (
                    "how many, how busy on average, their memory; 7/8 wait: 7 of 8 only wait in"
                    " NCCL (check: nvidia-smi)"
                ),
            ),
            (
                "GPU 3",
                (
                    "a GPU of the host above: busy, memory, power, heat, its ranks, what is wrong,"
                    " processes that are no rank's. Of more than 16 hosts only GPUs with something"
                    " wrong are listed"
                ),
            ),
            (
                "wait",
                (
                    "in place of how busy: NCCL's kernel spins there, at little power, until"
                    " another rank comes"
                ),
            ),
            ("RELAY", "what ddtop's own relay uses there: share of one core, memory"),
            ("DROPPED", "records that the relay dropped or could not read"),
            ("HEARD", "how old its last report is"),
        ),
    ),
    actions.EVENTS: (
        (
            "What happened, the newest last: findings that began and ended, ranks that started and"
            " ended, restarts, stacks. It follows the end until you move up; End follows again."
            " Enter shows one in full."
        ),
        (("STOOD", "how long a finding lasted, or has lasted until now"),),
    ),
    RANK_PAGE: (
        (
            "Everything that is known of one rank. The lines at the top are one value a second,"
            " scaled from zero to the largest; its smallest and its largest value are beside it."
        ),
        (),
    ),
    GROUP_PAGE: (
        "Members of one process group by what they do; those that are furthest behind come first.",
        _GROUP_WORDS,
    ),
    FINDING_PAGE: (
        (
            "The findings, worst first, and one of them opened: left and right open another."
            " Consequences are folded under their cause, so one root cause is one finding."
        ),
        (
            ("evidence", "the numbers and stack lines that the verdict rests on"),
            ("at fault", "the ranks where all waits end"),
            ("since", "when the fact began, not when it was seen"),
        ),
    ),
}
_WITH_STATES = frozenset(
    {actions.RANKS, actions.MAP, actions.HOSTS, actions.GROUPS, GROUP_PAGE, RANK_PAGE}
)


def help_lines(
    keys: Keys,
    width: int,
    glyphs: Glyphs = UNICODE,
    topic: str = actions.RANKS,
    own_keys: Keys = (),
) -> list[Line]:
    """The keys of the topic's view, what the view shows, and all keys; for the ranks also every
    column with how to check it."""
    page = Page(width, glyphs)
    here = "this page" if topic in (RANK_PAGE, GROUP_PAGE, FINDING_PAGE) else f"the {topic} view"
    if own_keys:
        page.heading(f"keys of {here}")
    for key, meaning in own_keys:
        page.item(key, meaning, label_style="key")
    text, items = _TOPICS.get(topic, _TOPICS[actions.RANKS])
    page.heading(
        f"what {'this page' if topic in (RANK_PAGE, GROUP_PAGE, FINDING_PAGE) else topic} shows"
    )
    page.text(text, "", "  ")
    for label, meaning in items:
        page.item(label, meaning)
    if topic in (actions.RANKS, RANK_PAGE):
        _letters(page)
    if topic == actions.MAP:
        _classes(page)
    elif topic in _WITH_STATES:
        _states(page)
    page.heading("all keys")
    for key, meaning in keys:
        page.item(key, meaning, label_style="key")
    if topic in (actions.RANKS, RANK_PAGE):
        _columns(page)
    return page.lines


def _classes(page: Page) -> None:
    page.heading("signs")
    for code, one in reversed(list(enumerate(CLASSES))):
        page.add(
            (f"  {glyph_of(code, page.glyphs)} {one.word:<11}", one.style), (_meaning(one.word), "")
        )


def _meaning(word: str) -> str:
    if word == CLASSES[HEALTHY].word:
        return "runs, or waits for a moment"
    if word == "finished":
        return "its process ended with exit code 0"
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
        page.item(
            column.title, f"{metric.meaning} ({metric.unit})" if metric.unit else metric.meaning
        )
        page.item("", f"from {metric.source}", "dim")
        page.item("", f"check: {metric.check}" if metric.check else "", "dim")


def _letters(page: Page) -> None:
    page.heading("letters in PHASES")
    pairs = zip(ACTIVITY_LETTERS, ACTIVITIES, strict=True)
    page.text(", ".join(f"{letter} {name}" for letter, name in pairs), "", "  ")
