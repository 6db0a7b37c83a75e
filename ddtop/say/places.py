"""Where a rank is and what it does there, in words."""

from __future__ import annotations

from ddtop.diagnosis.patience import phase_of
from ddtop.model.account import (
    CPU,
    KERNEL,
    NOTHING,
    STACKS,
    Does,
    does,
    does_at_report,
    fresh_stacks,
    gil_holder,
    is_silent,
    user_frame,
)
from ddtop.model.facts import RankFacts
from ddtop.say.said import duration
from ddtop.words.sentences import (
    file_line,
    framework_text,
    function_text,
    phase_text,
    thread_text,
)


def where_text(facts: RankFacts) -> str:
    """Where a rank is, to follow "has been" or "is": `in the DataLoader (data.py:40 load_image)`.

    For a silent rank without stacks: where its last report found it.
    """
    classified = does(facts)
    if classified.source in (STACKS, KERNEL, CPU, NOTHING) and is_silent(facts):
        return _in_c(facts, classified)
    place = facts.reported.place
    if place is None:
        return (
            classified.text
            if classified.text and classified.source != CPU
            else "at a place that cannot be seen"
        )
    around = framework_text(place)
    spot = f"in {function_text(place)} ({file_line(place)}{around})"
    if classified.source in (CPU, NOTHING):
        return spot
    if classified.source == KERNEL:
        return f"{classified.text} {spot}"
    return f"{classified.text} ({file_line(place)} {function_text(place)}{around})"


def _in_c(facts: RankFacts, classified: Does) -> str:
    """For a silent rank: C code that this line called holds the GIL, whatever it does."""
    stacks = fresh_stacks(facts)
    user = user_frame(stacks) if stacks is not None else None
    doing = classified.text if classified.source in (STACKS, KERNEL) else ""
    if stacks is not None and (holder := gil_holder(stacks)) is not None:
        name, at = holder
        return f"in C called from {file_line(at)} {at.function}, in its {thread_text(name)}"
    if user is not None and classified.word == "gil":
        return f"waiting at {file_line(user)} {user.function} for the GIL, held by another thread"
    if user is not None:
        return f"{doing} in C called from {file_line(user)} {user.function}".strip()
    place = facts.reported.place
    if place is None:
        return classified.text or "at a place that cannot be seen"
    last = does_at_report(facts)
    spot = f"{file_line(place)} {place.function}"
    seen = (
        f"last seen {last.text} ({spot})"
        if last is not None
        else f"last seen in {place.function} ({file_line(place)})"
    )
    return f"{doing}, {seen}" if doing else seen


def phase_clause(rank: RankFacts, now_unix_ns: int) -> str | None:
    """`saving a checkpoint (trainer.py:142), 40 s; usually 35 s`; None: it is in no such phase."""
    training = phase_of(rank)
    if training is None:
        return None
    place = rank.reported.place
    spot = f" ({file_line(place)})" if place is not None else ""
    lasts_s = max((now_unix_ns - (training.since_unix_ns or now_unix_ns)) / 1e9, 0.0)
    usual = f"; usually {duration(training.usual_s)}" if training.usual_s is not None else ""
    return f"{phase_text(training.phase or '')}{spot}, {duration(lasts_s)}{usual}"
