"""Which function writes the text of a finding, by the type of its record: the tables of all
topics."""

from __future__ import annotations

from ddtop.say import (
    blamed,
    calls,
    cycles,
    ends,
    gpus,
    hosts,
    no_progress,
    other_jobs,
    rendezvous,
    resources,
    stalls,
    starting,
    stragglers,
    training,
    versions,
)
from ddtop.say.said import Around, Writer

WRITERS: dict[type, Writer] = {
    **blamed.WRITERS,
    **calls.WRITERS,
    **cycles.WRITERS,
    **ends.WRITERS,
    **gpus.WRITERS,
    **hosts.WRITERS,
    **no_progress.WRITERS,
    **rendezvous.WRITERS,
    **resources.WRITERS,
    **stalls.WRITERS,
    **starting.WRITERS,
    **stragglers.WRITERS,
    **training.WRITERS,
    **versions.WRITERS,
}
AROUND: dict[type, Around] = {**calls.AROUND, **gpus.AROUND, **other_jobs.AROUND, **training.AROUND}
"""The writers of findings that are made of another one: they also get the words of that one."""
