"""The whole app on two terminals, one fed by plain Textual and one by the differ: the same in every
cell at any time."""

import pyte
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from textual._compositor import CompositorUpdate

from ddtop.model.facts import State
from ddtop.present.text import UNICODE
from ddtop.ui.app import DdtopApp
from ddtop.ui.terminal.differ import _size
from tests.ui import builders
from tests.ui.builders import JOB, NOW
from tests.ui.changed import replace
from tests.ui.terminals import Grid, differences

KEYS = [
    "j",
    "k",
    "pagedown",
    "end",
    "home",
    "space",
    "less_than_sign",
    "greater_than_sign",
    "e",
    "enter",
    "escape",
]
KEYS += [
    "q",
    "question_mark",
    "D",
    "d",
    "4",
    "1",
    "3",
    "slash",
    "5",
    "backspace",
    "f9",
    "t",
    "p",
    "ctrl+l",
    "tab",
]
OTHER_SIZES = {(80, 24): (100, 30), (200, 50): (150, 44)}


class Twice(DdtopApp):
    """Writes to two screens in memory: what Textual would send, and what is sent."""

    def __init__(self, source, size):
        super().__init__(source, JOB, clock=lambda: NOW, glyphs=UNICODE)
        self.plain, self.sent = Grid(*size), Grid(*size)
        self.on_a_terminal = False

    @property
    def is_headless(self):
        return not self.on_a_terminal and super().is_headless

    def garble(self, size):
        """What remains of the screen after a resize depends on the terminal."""
        for screen in (self.plain, self.sent):
            screen.resize(size[1], size[0])
            pyte.Stream(screen).feed(
                "".join(f"\x1b[{y + 1}H" + "?" * size[0] for y in range(size[1]))
            )

    def _display(self, screen, renderable):
        draws = (
            isinstance(renderable, CompositorUpdate)
            and self._running
            and not self._closed
            and not self._batch_count
            and not screen.empty
        )
        if not draws:
            super()._display(screen, renderable)
            return
        pyte.Stream(self.plain).feed("\x1b[?7l" + renderable.render_segments(self.console))
        self._driver.write = pyte.Stream(self.sent).feed
        self.on_a_terminal = True
        try:
            super()._display(screen, renderable)
        finally:
            self.on_a_terminal = False
        # A last frame of the old size may come after the terminal has its new size, and its effect
        # is not defined.
        if screen is self.screen_stack[-1] and _size(renderable) == (
            self.sent.columns,
            self.sent.lines,
        ):
            assert self.differ_failure is None
            assert not differences(self.plain, self.sent)


def moved_on(look, seed):
    """The same job a moment later. `seed` decides which of its numbers differ."""
    snapshot = look.snapshot
    ranks = tuple(
        rank
        if (rank.rank + seed) % 3
        else replace(
            rank,
            progress={"iteration": (rank.rank * 37 + seed * 101) % 20_000},
            state=list(State)[(rank.rank + seed) % len(State)],
            comm={
                "collective_age_s": None
                if rank.comm.collective_age_s is None
                else float(seed % 100)
            },
            process={"cpu_ratio": (seed * 7 + rank.rank) % 100 / 100},
        )
        for rank in snapshot.ranks
    )
    return replace(look, snapshot=replace(snapshot, ranks=ranks, iteration=seed))


steps = st.lists(
    st.one_of(
        st.tuples(st.just("key"), st.sampled_from(KEYS)),
        st.tuples(st.just("facts"), st.integers(0, 1000)),
        st.tuples(st.just("facts"), st.integers(0, 1000)),
        st.tuples(
            st.just("other facts"), st.sampled_from(["hang", "healthy", "starting_up", "ended"])
        ),
        st.tuples(st.just("resize"), st.booleans()),
    ),
    min_size=4,
    max_size=10,
)


async def play(script, size):
    app = Twice(builders.live(*builders.hang(64)), size)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        app._ticker.stop()
        for kind, what in script:
            if kind == "key":
                # `q` on the main screen ends the app.
                if what != "q" or len(app.screen_stack) > 1:
                    await pilot.press(what)
            elif kind == "facts":
                app.session.source.shown = moved_on(app.session.source.shown, what)
                app.tick()
            elif kind == "other facts":
                shown = getattr(builders, what)()
                app.session.source.shown = builders.live(
                    *shown if isinstance(shown, tuple) else (shown,)
                ).shown
                app.tick()
            else:
                other = OTHER_SIZES[size] if what else size
                app.garble(other)
                await pilot.resize_terminal(*other)
            await pilot.pause()
        app.action_redraw()
        await pilot.pause()
        texts = [strip.text.rstrip() for strip in app.screen._compositor.render_strips()]
        shown = [line.rstrip() for line in app.sent.display]
    assert texts == shown


def settled(examples):
    """Shrinking a failing script would take many minutes, so it is shown as it was found."""
    phases = [Phase.explicit, Phase.reuse, Phase.generate]
    return settings(
        max_examples=examples, deadline=None, phases=phases, suppress_health_check=list(HealthCheck)
    )


@settled(4)
@given(script=steps)
async def test_both_show_the_same_on_every_page(script):
    await play(script, (80, 24))


@settled(2)
@given(script=steps)
async def test_both_show_the_same_on_a_large_terminal(script):
    await play(script, (200, 50))
