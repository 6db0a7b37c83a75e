"""Runs the app without a terminal, and reads its screen."""

from contextlib import asynccontextmanager

from ddtop.present.text import UNICODE
from ddtop.ui.app import DdtopApp
from tests.ui.builders import JOB, NOW


@asynccontextmanager
async def watching(source, size=(80, 24), programs=None):
    """The app and a pilot. After its keys and clicks the screen is drawn, also a new one."""
    app = DdtopApp(source, JOB, clock=lambda: NOW, glyphs=UNICODE, programs=programs)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        for name in ("press", "click"):
            setattr(pilot, name, _and_draw(getattr(pilot, name), pilot))
        yield app, pilot


def _and_draw(act, pilot):
    async def acts(*arguments, **named):
        done = await act(*arguments, **named)
        await pilot.pause()
        return done

    return acts


def screen_text(app):
    """The text of the screen, line by line."""
    return [strip.text.rstrip() for strip in app.screen._compositor.render_strips()]


def shown_ranks(app):
    return list(app.screen.table._keys)


async def show(app, pilot, look):
    app.session.source.shown = look
    app.tick()
    await pilot.pause()
