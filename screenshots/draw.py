"""Draws the pictures of the README from the real demo, and of large jobs from simulated ones:
python screenshots/draw.py [PICTURE ...]

Each starts a demo job or a simulated one, lets the dashboard look at it without a terminal, and
saves what it shows as SVG, with the characters of its font inside. With DDTOP_PNG=FOLDER it is
saved as PNG there too (needs cairosvg).
"""

from __future__ import annotations

import asyncio
import base64
import html
import io
import os
import re
import sys
import time
from pathlib import Path

os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
os.environ.pop("NO_COLOR", None)

from fontTools import subset

from ddtop.cli.demo_job import demo_job
from ddtop.cli.simulate import NOTE, JobClock, SimSource, moment
from ddtop.diagnosis.finding import UNKNOWN
from ddtop.follow.live import LiveSource
from ddtop.present.jobs import ASKING, Health, health_of
from ddtop.registry import SCHEMA, JobEntry
from ddtop.sim.incidents import SCENARIOS
from ddtop.sim.job import SimulatedJob
from ddtop.ui.app import DdtopApp
from ddtop.ui.picker import JobSearch, PickerApp

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
    "straggler-120x40": ("straggler", 120, 40, ()),
}
SIMULATED = {
    # name: (ranks, scenario, seconds that it has lasted, columns, rows, keys pressed before)
    "map-120x40": (4096, "rank-killed", 22.0, 120, 40, ("2",)),
    "sim-120x40": (4096, "loader-stuck", 24.0, 120, 40, ()),
}
JOBS = "jobs-100x20"
LISTED = {
    # name: (ranks, hosts, script, minutes since its start, scenario, how it has ended)
    "pretrain-7b": (512, "node000", "pretrain.py", 52, "loader-stuck", None),
    "sft-llama-8b": (64, "node112", "finetune.py", 14, "straggler", None),
    "vit-ablation-3": (8, "gpu07", "train.py", 3, "healthy", None),
    "pretrain-7b-lr3e4": (
        512,
        "node064",
        "pretrain.py",
        260,
        "",
        "rank 131 went first: SIGKILL (out of memory)",
    ),
    "vit-ablation-2": (8, "gpu07", "train.py", 340, "", "all ranks finished"),
    "eval-mmlu": (16, "gpu03", "evaluate.py", 1500, "", "cancelled"),
}
WATCH_S, DEADLINE_S = 75.0, 120.0
"""A healthy job is watched until its lines of minutes say something."""
FAMILY, FONT = "DejaVu Sans Mono", Path("/usr/share/fonts/truetype/dejavu/DejaVuSansMono.ttf")
REMOTE_FONTS = re.compile(r"\n    @font-face \{.*?\}(?=\n)", re.DOTALL)
"""Rich loads them from a content delivery network; the documents load nothing from elsewhere."""


def main() -> None:
    """Draw the named pictures, or all."""
    for name in sys.argv[1:] or [*PICTURES, *SIMULATED, JOBS]:
        if name == JOBS:
            svg = asyncio.run(list_of_jobs((100, 20)))
        elif name in SIMULATED:
            ranks, scenario, seconds, columns, rows, keys = SIMULATED[name]
            svg = asyncio.run(simulated(ranks, scenario, seconds, (columns, rows), keys))
        else:
            fault, columns, rows, keys = PICTURES[name]
            with demo_job(fault, 4) as entry:
                svg = asyncio.run(picture(entry, fault, (columns, rows), keys))
        path = HERE / f"{name}.svg"
        path.write_text(with_font(REMOTE_FONTS.sub("", svg)))
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
        # A few more looks, so that ages and ratios are those of a person who arrives a moment
        # later.
        await pilot.pause(3.0)
        for key in keys:
            await pilot.press(key)
        await pilot.pause(1.0)
        return app.export_screenshot(title="ddtop")


async def simulated(
    ranks: int, scenario: str, seconds: float, size: tuple[int, int], keys: tuple[str, ...]
) -> str:
    """What the dashboard shows of a simulated job whose script began so long ago."""
    clock = JobClock()
    job = SimulatedJob(ranks, 0, SCENARIOS[scenario], began_unix_ns=clock() - round(seconds * 1e9))
    source = SimSource(job, NOTE.format(slowly="", scenario=scenario, seed=0), clock)
    app = DdtopApp(source, job.name)
    async with app.run_test(size=size) as pilot:
        until = time.monotonic() + DEADLINE_S
        while not source.look().verdict.findings:
            if time.monotonic() > until:
                raise SystemExit(f"{scenario} did not show within {DEADLINE_S:.0f} s")
            await pilot.pause(0.5)
        for key in keys:
            await pilot.press(key)
        await pilot.pause(3.0)
        return app.export_screenshot(title="ddtop")


async def list_of_jobs(size: tuple[int, int]) -> str:
    """The list of jobs, with the verdicts that the rules find in simulated ones."""
    now = time.time_ns()
    entries = [
        JobEntry(
            SCHEMA,
            name,
            "r1",
            host,
            "feed",
            1,
            1,
            "",
            1,
            "",
            script,
            ranks,
            ranks,
            now - minutes * 60 * 10**9,
            now + 10**12 if ended is None else 0,
            None if ended is None else now,
            ended,
        )
        for name, (ranks, host, script, minutes, _, ended) in LISTED.items()
    ]

    def ask(entry: JobEntry) -> Health:
        *_, scenario, ended = LISTED[entry.job]
        if ended is not None:
            return Health(UNKNOWN, ended=ended)
        job = SimulatedJob(entry.world_size, 0, SCENARIOS[scenario], began_unix_ns=now)
        return health_of(moment(job, 35.0)[1])

    app = PickerApp(JobSearch(lambda: entries, ask))
    async with app.run_test(size=size) as pilot:
        until = time.monotonic() + DEADLINE_S
        while ASKING in (svg := app.export_screenshot(title="ddtop")).replace(
            "&#160;", " "
        ) or "went first" not in svg.replace("&#160;", " "):
            if time.monotonic() > until:
                raise SystemExit(f"the list of jobs was not complete within {DEADLINE_S:.0f} s")
            await pilot.pause(0.5)
        return app.export_screenshot(title="ddtop")


def with_font(svg: str) -> str:
    """The picture with the characters of its font that it needs inside it.

    A browser without that font would draw lines and bars that do not meet.
    """
    options = subset.Options(flavor="woff2", layout_features=[], drop_tables=["FFTM"])
    font = subset.load_font(str(FONT), options)
    wanted = subset.Subsetter(options)
    wanted.populate(text=html.unescape(re.sub(r"<[^>]*>", "", svg)))
    wanted.subset(font)
    data = io.BytesIO()
    subset.save_font(font, data, options)
    url = f"data:font/woff2;base64,{base64.b64encode(data.getvalue()).decode()}"
    face = f'@font-face {{ font-family: "{FAMILY}"; src: url("{url}") format("woff2"); }}'
    return svg.replace("<style>", f"<style>\n    {face}", 1).replace("Fira Code", FAMILY)


def draw_png(svg: str, path: Path) -> None:
    """The picture as PNG; the web font of the SVG is not fetched, a local one stands in."""
    import cairosvg

    cairosvg.svg2png(bytestring=svg.replace("Fira Code", FAMILY).encode(), write_to=str(path))


if __name__ == "__main__":
    main()
