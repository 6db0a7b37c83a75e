"""Draws the pictures of the README from the real demo: python screenshots/draw.py [PICTURE ...]

Each starts a demo job, lets the dashboard look at it without a terminal, and saves what it shows as SVG; with
DDTOP_PNG=FOLDER also as PNG there (needs cairosvg).
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
os.environ.pop("NO_COLOR", None)

from ddtop.cli.running import demo_job
from ddtop.registry import JobEntry
from ddtop.ui.app import DdtopApp
from ddtop.ui.live import LiveSource

HERE = Path(__file__).parent
PICTURES = {
    # name: (fault, columns, rows, keys pressed before)
    "healthy-120x40": ("healthy", 120, 40, ()),
    "hang-80x24": ("not-in-collective", 80, 24, ()),
    "hang-120x40": ("not-in-collective", 120, 40, ()),
    "stacks-120x40": ("not-in-collective", 120, 40, ("D",)),
    "past-120x40": ("not-in-collective", 120, 40, ("left_square_bracket",)),
    "killed-120x40": ("rank-killed", 120, 40, ()),
    "stopped-120x40": ("rank-stopped", 120, 40, ()),
    "input-bound-120x40": ("input-bound", 120, 40, ()),
}
WATCH_S, DEADLINE_S = 12.0, 60.0


def main() -> None:
    """Draw the named pictures, or all."""
    for name in sys.argv[1:] or PICTURES:
        fault, columns, rows, keys = PICTURES[name]
        with demo_job(fault, 4) as entry:
            svg = asyncio.run(picture(entry, fault, (columns, rows), keys))
        path = HERE / f"{name}.svg"
        path.write_text(svg)
        if os.environ.get("DDTOP_PNG"):
            draw_png(svg, Path(os.environ["DDTOP_PNG"]) / f"{name}.png")
        print(path)


async def picture(entry: JobEntry, fault: str, size: tuple[int, int], keys: tuple[str, ...]) -> str:
    """What the dashboard shows once the fault stands; a healthy job is watched for a while."""
    source = LiveSource(entry)
    app = DdtopApp(source, entry.job)
    async with app.run_test(size=size) as pilot:
        waited = 0.0
        while waited < DEADLINE_S:
            await pilot.pause(0.5)
            waited += 0.5
            kinds = {finding.kind for finding in source.look().verdict.findings}
            if fault in kinds or (fault == "healthy" and waited > WATCH_S):
                break
        else:
            raise SystemExit(f"{fault} did not show within {DEADLINE_S:.0f} s")
        # A few more looks, so that ages and ratios are those of a person who arrives a moment later.
        await pilot.pause(3.0)
        for key in keys:
            await pilot.press(key)
        await pilot.pause(1.0)
        return app.export_screenshot(title="ddtop")


def draw_png(svg: str, path: Path) -> None:
    """The picture as PNG; the web font of the SVG is not fetched, a local one stands in."""
    import cairosvg

    cairosvg.svg2png(bytestring=svg.replace("Fira Code", "DejaVu Sans Mono").encode(), write_to=str(path))


if __name__ == "__main__":
    main()
