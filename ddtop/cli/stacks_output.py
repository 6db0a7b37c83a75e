"""Merged stacks as text for this output, with the lines of source around each frame."""

from __future__ import annotations

from ddtop.cli.output import glyphs, width
from ddtop.diagnosis.finding import Verdict
from ddtop.follow.source_lines import Excerpts
from ddtop.model.facts import Snapshot
from ddtop.model.stacks import Merged
from ddtop.present.stacks import Around, Shape, around, stacks_text
from ddtop.thresholds import chosen

SOURCE_S = 1.0
"""How long files of source are waited for."""


def text_of(
    merged: Merged, snapshot: Snapshot, verdict: Verdict, shape: Shape, source: bool = True
) -> str:
    """The stacks as text. `source`: with the lines of source that can be read in time."""
    setting = with_source(merged, snapshot, verdict, shape, source)
    return stacks_text(merged, width(), glyphs(), setting, shape)


def with_source(
    merged: Merged, snapshot: Snapshot, verdict: Verdict, shape: Shape, source: bool
) -> Around:
    """What stands around the frames; the lines of source have been read, as far as time allows."""
    excerpts = Excerpts(source)
    setting = around(snapshot, verdict, merged, excerpts.get, chosen())
    # This pass finds out which lines are wanted. A thread reads the files.
    stacks_text(merged, width(), glyphs(), setting, shape)
    excerpts.wait(SOURCE_S)
    return setting
