"""A request for the stacks of some ranks and its merged answers, for a page and for a view."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from ddtop.diagnosis.finding import Verdict
from ddtop.follow.history import JobHistory, SeriesHistory
from ddtop.follow.look import Dump, Look
from ddtop.model.facts import Snapshot
from ddtop.model.stacks import Merged
from ddtop.patience import in_thread
from ddtop.present.events import EventLog
from ddtop.present.stacks import (
    Shape,
    answers,
    around,
    at_fault,
    head_line,
    last_request,
    merged_of,
    stacks_lines,
)
from ddtop.present.text import Line, clean, wrap
from ddtop.thresholds import chosen
from ddtop.ui.session import Session
from ddtop.ui.widgets.lines import Key, LinesView
from ddtop.wire.records import BY_SIGNAL, Stacks
from ddtop.words import units
from ddtop.words.sentences import ranks_text

OLD_S = 5.0
"""From this age on, a dump shows how old it is."""


class AskedStacks:
    """Stacks as classes or as a tree: the requested ones of `ranks` (empty: all); None: the last
    dump."""

    def __init__(self, session: Session, ranks: tuple[int, ...] | None) -> None:
        self.session = session
        self.ranks = ranks
        self.shape = Shape()
        self._refusal: str | None = None
        self._before: Dump | None = None
        self._not_before = 0.0
        self._merged: tuple[tuple[Stacks, ...], tuple[int, ...], Merged] | None = None

    def lines(self, width: int) -> list[Line]:
        """The answers so far, and what is missing."""
        look = self.session.newest
        snapshot = look.snapshot
        if snapshot is None:
            return []
        if self.ranks is None:
            return self._last(look, snapshot, width)
        dump = self._own_dump(look)
        if dump is None:
            if self._refusal is None:
                return [((f"asking {self._whom(snapshot)} ...", "title"),)]
            lines: list[Line] = [((text, "warning"),) for text in wrap(clean(self._refusal), width)]
            return [*lines, (), *self._last(look, snapshot, width)]
        merged = self._merge(answers(snapshot, dump.request, dump.asked_unix_ns, self.ranks), look)
        return [*self._head(dump, merged, snapshot, width), *self._body(merged, look, width)]

    def _own_dump(self, look: Look) -> Dump | None:
        """The dump of this request, as soon as the source has started it."""
        before = self._before.request if self._before is not None else None
        return look.dump if look.dump is not None and look.dump.request != before else None

    def _whom(self, snapshot: Snapshot) -> str:
        return (
            ranks_text(self.ranks, 6) if self.ranks else units.plural(snapshot.world_size, "rank")
        )

    def _head(self, dump: Dump, merged: Merged, snapshot: Snapshot, width: int) -> list[Line]:
        if dump.refused is not None:
            warned: list[Line] = [((text, "warning"),) for text in wrap(clean(dump.refused), width)]
            return [*warned, head_line(merged)] if merged.asked else warned
        if not dump.done:
            return [
                ((f"asking {self._whom(snapshot)}, {dump.answered} answered so far ...", "title"),)
            ]
        return [head_line(merged, self._age(merged, snapshot))]

    def _last(self, look: Look, snapshot: Snapshot, width: int) -> list[Line]:
        request = last_request(snapshot)
        if request is None:
            # In a recording, or after the end of the job, there is nobody to ask.
            asks = snapshot.live and snapshot.ended is None and not look.recording
            text = "no stacks of this job have been taken yet" + (
                "; D asks all ranks" if asks else ""
            )
            return [((part, "dim"),) for part in wrap(text, width)]
        merged = self._merge(answers(snapshot, request), look)
        return [head_line(merged, self._age(merged, snapshot)), *self._body(merged, look, width)]

    def merged(self) -> Merged | None:
        """The last dump, merged; None if there is none."""
        look = self.session.shown
        request = last_request(look.snapshot) if look.snapshot is not None else None
        if look.snapshot is None or request is None:
            return None
        return self._merge(answers(look.snapshot, request), look)

    def _age(self, merged: Merged, snapshot: Snapshot) -> str:
        if merged.last_unix_ns is None:
            return ""
        age_s = (snapshot.time_unix_ns - merged.last_unix_ns) / units.SECOND_NS
        return f", {units.duration(age_s)} ago" if age_s >= OLD_S else ""

    def _merge(self, found: list[Stacks], look: Look) -> Merged:
        """Merge once and keep the result: the same answers are drawn many times."""
        blamed, known = at_fault(look.verdict, look.snapshot), self._merged
        if (
            known is None
            or known[1] != blamed
            or len(known[0]) != len(found)
            or any(answer is not other for answer, other in zip(known[0], found, strict=True))
        ):
            known = self._merged = (
                tuple(found),
                blamed,
                merged_of(found, look.verdict, look.snapshot),
            )
        return known[2]

    def _body(self, merged: Merged, look: Look, width: int) -> list[Line]:
        if look.snapshot is None or not merged.asked:
            return []
        setting = around(look.snapshot, look.verdict, merged, self.session.excerpts.get, chosen())
        return stacks_lines(merged, width, self.session.paint.glyphs, setting, self.shape)

    def shape_keys(self) -> tuple[Key, ...]:
        """The keys that change how the stacks are shown."""
        return (
            ("v", "v", "classes" if self.shape.tree else "tree"),
            ("T", "T", "fewer threads" if self.shape.threads else "all threads"),
            ("f", "f", "fold frames" if self.shape.frames else "all frames"),
        )

    def due(self) -> bool:
        """Whether an answer is missing and it is time to check for it."""
        if time.monotonic() < self._not_before:
            return False
        dump = (
            self._own_dump(self.session.newest)
            if self.ranks is not None and self._refusal is None
            else None
        )
        waiting = (
            self.ranks is not None and self._refusal is None and (dump is None or not dump.done)
        )
        return waiting or bool(self.session.excerpts.pending)

    def looked(self, took_s: float) -> None:
        """Note how long a look took. Thousands of ranks cost a tenth of a second, and at most a
        quarter of the time may go into this."""
        self._not_before = time.monotonic() + 3 * took_s

    def asking(self, ranks: tuple[int, ...]) -> None:
        """Note the ranks that `ask` will ask."""
        self.ranks, self._refusal, self._before = ranks, None, self.session.newest.dump

    async def ask(self, by_signal: bool = False) -> None:
        """Ask those ranks. `by_signal`: the user has agreed to the dump signal."""
        look = self.session.newest
        if look.snapshot is not None and (
            look.snapshot.ended is not None or not look.snapshot.live
        ):
            self._refusal = "the job has ended: these are its last stacks"
        elif look.travelled:
            self._refusal = "you are looking at the past: stacks can only be taken in the present"
        else:
            self._refusal = await self.session.source.ask_stacks(
                self.ranks or (), BY_SIGNAL if by_signal else ""
            )


class ShapedStacks:
    """The keys that change how stacks are shown, for the page and for the view."""

    asked: AskedStacks
    body: LinesView

    def show_again(self) -> None:
        """Draw the stacks in their new form."""
        raise NotImplementedError

    def action_change_view(self) -> None:
        """Switch between classes and the tree."""
        self.body.scroll_home(animate=False)
        self._flip("tree")

    def action_frames(self) -> None:
        """Unfold the frames of libraries and frameworks, or fold them."""
        self._flip("frames")

    def action_threads(self) -> None:
        """Show the other threads in full, or one line per class."""
        self._flip("threads")

    def _flip(self, part: str) -> None:
        shape = self.asked.shape
        self.asked.shape = replace(shape, **{part: not getattr(shape, part)})
        self.show_again()


# -- What happened before this viewer connected: found once in the records that the source has
#    kept, on a separate thread


LOOKS_MAX = 240
STEP_MIN_NS = 1_000_000_000
TAKES_S = 10.0
"""The most time that this may take. With hundreds of ranks one look costs a tenth of a second."""
REST_PART = 1.0
"""After each look the thread sleeps for this share of the look's time: the screen needs the GIL
too."""

Recall = Callable[[int], Iterator[tuple[Snapshot, Verdict]]]


async def recall(session: Session) -> bool:
    """Add the past to the session's timeline and to the job's numbers. Returns False where nothing
    is kept or this was done before."""
    look = session.newest
    if session.recalled or look.recall is None or look.span is None:
        return False
    session.recalled = True
    step_ns = max((look.span[1] - look.span[0]) // LOOKS_MAX, STEP_MIN_NS)
    until = session.timeline.began_unix_ns
    timeline, history, series = await in_thread(_looked, look.recall, step_ns, until)
    session.timeline.absorb(timeline)
    session.remember(history, series)
    return True


def _looked(
    looks: Recall, step_ns: int, until_unix_ns: int | None
) -> tuple[EventLog, JobHistory, SeriesHistory]:
    timeline, history, series = EventLog(chosen()), JobHistory(chosen()), SeriesHistory()
    began = time.monotonic()
    at = began
    for snapshot, verdict in looks(step_ns):
        if until_unix_ns is not None and snapshot.time_unix_ns >= until_unix_ns:
            break
        timeline.take(Look(snapshot, verdict))
        history.record(snapshot)
        series.record(snapshot)
        now = time.monotonic()
        if now - began > TAKES_S:
            break
        time.sleep(min((now - at) * REST_PART, 0.1))
        at = time.monotonic()
    return timeline, history, series
