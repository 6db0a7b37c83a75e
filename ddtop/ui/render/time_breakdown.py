"""Where a rank's time goes: its phases as a bar of letters and as numbers, its functions, and the
ranks that wait for it."""

from __future__ import annotations

from ddtop.model.state.facts import RankFacts
from ddtop.present.table.bars import ACTIVITY_LETTERS, phases
from ddtop.present.text import clean
from ddtop.ui.render.page import LABEL, Page
from ddtop.wire.records import ACTIVITIES
from ddtop.wire.samples import Spot, by_function
from ddtop.words import units
from ddtop.words.ranks import ranks_text
from ddtop.words.sentences import file_line

BAR_MOST = 50
_NAMES = {"cuda_sync": "CUDA sync"}
_SPOT_LEAST_RATIO = 0.02


def time_lines(page: Page, rank: RankFacts) -> None:
    """Add the section, if there are samples."""
    shares = rank.reported.activity_ratios
    if not any(shares) and not rank.reported.spots and rank.late is None:
        return
    page.heading("where its time goes")
    if any(shares):
        # Letters, so that the bar tells as much without colours.
        page.item("phases", phases(shares, max(min(page.width - 2 - LABEL - 2, BAR_MOST), 0)))
        named = [
            f"{letter} {_NAMES.get(name, name)} {units.percent(share)}"
            for letter, name, share in zip(ACTIVITY_LETTERS, ACTIVITIES, shares, strict=False)
            if share > 0
        ]
        page.item("", ", ".join(named))
    if rank.late is not None:
        cost = (
            f"{units.milliseconds(rank.late.cost_ms)} ms of each"
            f" {units.milliseconds(rank.late.step_ms)} ms"
        )
        page.item("waited for", f"{cost}, by {ranks_text(rank.late.waiters, 8)}", "warning")
    pressure = rank.process.pressure
    if pressure is not None and pressure.delay_ratio is not None:
        delayed = units.percent(pressure.delay_ratio)
        page.item("no CPU", f"{delayed} of the time ready to run, and waiting for one")
    for number, spot in enumerate(by_function(rank.reported.spots)):
        share = spot.samples / rank.reported.spots_samples if rank.reported.spots_samples else 0.0
        if share >= _SPOT_LEAST_RATIO:
            page.item("last 30 s" if number == 0 else "", f"{units.percent(share)} {_spot(spot)}")


def _spot(spot: Spot) -> str:
    function = spot.function.rpartition("<locals>.")[2]
    return clean(f"{function} {file_line(spot)}")
