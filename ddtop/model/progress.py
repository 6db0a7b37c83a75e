"""The progress of the job, from the progress of its ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite, isnan
from statistics import median
from typing import TypeVar

import msgspec

from ddtop.model.facts import Began, RankFacts
from ddtop.policy import Limits, Policy
from ddtop.wire.records import IDLE, TRAIN, Loader, RankState, Replica, TrainingProgress

T = TypeVar("T")


def of_job(ranks: Iterable[RankFacts], still: bool, now_unix_ns: int) -> TrainingProgress | None:
    """One progress for all ranks; None while no rank reports any. `still`: no rank makes steps.

    Steps and rates are the median over the ranks that have the most frequent source of steps. What
    only some ranks know (loss and bars are often rank 0's) is taken from the lowest of them. The
    phase is that of most ranks, but `train` only if no living rank is in another: the job waits
    for a rank that saves a checkpoint.
    """
    known = [(rank, rank.progress.training) for rank in ranks if rank.progress.training is not None]
    if not known:
        return None
    counting = [progress for _, progress in known if progress.step is not None]
    source = _most_frequent(
        [progress.source for progress in counting or [progress for _, progress in known]]
    )
    trainings = [
        progress
        for progress in counting or [progress for _, progress in known]
        if progress.source == source
    ]
    rest = [*trainings, *(progress for _, progress in known if progress.source != source)]
    phased = _phase(
        [progress for rank, progress in known if not rank.gone]
        or [progress for _, progress in known]
    )
    steps = [progress.step for progress in trainings if progress.step is not None]
    training = TrainingProgress(
        source=source,
        step=int(median(steps)) if steps else None,
        total_steps=_first_value(progress.total_steps for progress in trainings),
        epoch=_median_of([progress.epoch for progress in trainings]),
        total_epochs=_first_value(progress.total_epochs for progress in trainings),
        phase=phased.phase,
        samples_per_s=_median_of([progress.samples_per_s for progress in rest]),
        tokens_per_s=_median_of([progress.tokens_per_s for progress in rest]),
        loss=_first_value(progress.loss for progress in rest),
        lr=_first_value(progress.lr for progress in rest),
        eta_s=_median_of([progress.eta_s for progress in trainings]),
        since_unix_ns=phased.since_unix_ns,
        steps_per_s=_median_of([progress.steps_per_s for progress in trainings]),
        usual_s=phased.usual_s,
        longest_s=phased.longest_s,
        phases_ended=phased.phases_ended,
    )
    return as_it_stands(training, still, now_unix_ns)


def as_it_stands(progress: TrainingProgress, still: bool, now_unix_ns: int) -> TrainingProgress:
    """Without a time left and without rates if the job is `still`: nobody knows when it goes on, or
    whether, and a framework's rates are those of its last report.

    In a validation or a checkpoint no steps are expected, so they stay until the phase takes longer
    than all of its kind before.
    """
    if not still or _is_pause(progress, now_unix_ns):
        return progress
    return msgspec.structs.replace(
        progress, eta_s=None, steps_per_s=None, samples_per_s=None, tokens_per_s=None
    )


def _is_pause(progress: TrainingProgress, now_unix_ns: int) -> bool:
    """Whether it is in a phase without steps, and for no longer than the longest one before."""
    if progress.phase in (None, TRAIN, IDLE):
        return False
    if progress.since_unix_ns is None or progress.longest_s is None:
        return False
    return now_unix_ns - progress.since_unix_ns <= progress.longest_s * 1e9


def _phase(trainings: Sequence[TrainingProgress]) -> TrainingProgress:
    """The progress whose phase is the job's, with the earliest beginning."""
    named = [progress for progress in trainings if progress.phase is not None]
    others = [progress for progress in named if progress.phase != TRAIN]
    if not named:
        return trainings[0]
    phase = _most_frequent([progress.phase or "" for progress in others or named])
    same = [progress for progress in named if progress.phase == phase]
    return min(same, key=lambda progress: progress.since_unix_ns or 0)


def _most_frequent(names: Sequence[str]) -> str:
    """The most frequent name, the first of equals."""
    return Counter(names).most_common(1)[0][0]


def _median_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(median(known)) if known else None


def _first_value(values: Iterable[T | None]) -> T | None:
    return next((value for value in values if value is not None), None)


def not_finite(known: Began | None, state: RankState, at_unix_ns: int) -> Began | None:
    """What is known after a report of `at_unix_ns`; None once the loss is a number again."""
    training = state.progress
    if training is None or training.loss is None or isfinite(training.loss):
        return None
    step = training.step if training.step is not None else state.iteration
    return known or Began(at_unix_ns, step or 0)


# -- Since which step parameters that should be equal on two ranks are not


@dataclass(frozen=True)
class Divergence(Limits, of="diverged"):
    """`diverged`."""

    samples: int = 2
    """Samples in a row that differ. One may be read while a slow copy is under way."""
    ratio: float = 1e-4
    """Difference of a value, as a share of it. GPUs of two kinds differ by 1e-7 in a step; what an
    optimizer does in one step is more than this."""


def apart(
    known: Began | None, own: Replica, other: Replica | None, at_unix_ns: int, policy: Policy
) -> Began | None:
    """Since when their samples differ, after a report of `at_unix_ns`."""
    theirs = dict(other.taken if other is not None else ())
    near = {
        step: values == theirs[step] or _are_near(values, theirs[step], policy.of(Divergence).ratio)
        for step, values in own.taken
        if step in theirs
    }
    equal = max((step for step, is_near in near.items() if is_near), default=0)
    run = [step for step in near if step > equal]
    if known is not None and (run or not near):
        return known
    return Began(at_unix_ns, run[0]) if len(run) >= policy.of(Divergence).samples else None


def _are_near(one: tuple[float, ...], other: tuple[float, ...], ratio: float) -> bool:
    return all(
        # An infinite value is near no number, and nan only near another.
        mine == theirs
        or abs(mine - theirs) <= ratio * min(abs(mine), abs(theirs))
        or (isnan(mine) and isnan(theirs))
        for mine, theirs in zip(one, other, strict=False)
    )


# -- Since when the DataLoader worker that must deliver the next batch makes no progress


@dataclass(frozen=True)
class SampleReading(Limits, of="reading"):
    """Whether the worker that must deliver the next batch reads its sample in pieces."""

    bytes_per_s: float = 8192.0
    """It reads this much. What a loop that waits reads of a status file is less; a rank reads more
    than that for itself, so `io_working_bytes_per_s` is larger."""


_HELPLESS = (None, "Z", "X", "T", "t")
_ASLEEP = "nanosleep"


@dataclass(frozen=True, slots=True)
class Owing:
    """What is known of the worker that must deliver the next batch. Times are unix ns."""

    #: (pid of the worker, batches, exhausted): another batch or worker is another wait.
    key: tuple[int | None, int, int]
    #: It is gone or stopped.
    helpless: bool
    #: Since when nothing of it moved, or since when it is gone or stopped.
    still_since_unix_ns: int
    #: When something of it last moved while this batch was waited for; None: nothing has.
    moved_unix_ns: int | None = None
    #: How often it woke per second, of a worker that sleeps: it polls, or works in short steps.
    naps_per_s: float = 0.0

    def moved(self, by_ns: int) -> Owing:
        """All times plus `by_ns`: the offset of their clock was corrected."""
        at = self.moved_unix_ns
        return replace(
            self,
            still_since_unix_ns=self.still_since_unix_ns + by_ns,
            moved_unix_ns=at + by_ns if at else at,
        )


def is_helpless(loader: Loader) -> bool:
    """Whether that worker is gone or stopped: it cannot work, whatever it has used before."""
    return loader.owing_state in _HELPLESS


def follow(
    owing: Owing | None,
    before: Loader | None,
    now: Loader | None,
    at_unix_ns: int,
    seconds: float,
    policy: Policy,
) -> Owing | None:
    """What is known after the report `now` of `at_unix_ns`, `seconds` after the report `before`.

    None while no worker has to deliver a batch.
    """
    if (
        now is None
        or now.owing_pid is None
        or (now.waiting_since_unix_ns is None and not now.closing)
    ):
        return None
    cannot = is_helpless(now)
    if not cannot and now.workers_cpu_ns is None:
        return None
    key = (now.owing_pid, now.batches, now.exhausted)
    if owing is None or before is None or (owing.key, owing.helpless) != (key, cannot):
        return Owing(key, cannot, at_unix_ns)
    if not cannot and _has_moved(before, now, seconds, policy):
        return Owing(key, False, at_unix_ns, at_unix_ns)
    wakes = _growth(before.owing_switches, now.owing_switches)
    naps = wakes / seconds if _ASLEEP in (now.owing_wchan or "") and seconds else 0.0
    return replace(owing, naps_per_s=naps) if naps != owing.naps_per_s else owing


def moves(owing: Owing | None, now_unix_ns: int, policy: Policy) -> bool:
    """Whether something of that worker has moved lately: then its rank works, though its process
    waits."""
    moved = owing.moved_unix_ns if owing is not None else None
    return moved is not None and now_unix_ns - moved <= policy.still_limit_s * 1e9


def _has_moved(before: Loader, now: Loader, seconds: float, policy: Policy) -> bool:
    if (
        _growth(before.workers_cpu_ns, now.workers_cpu_ns)
        > policy.cpu_working_ratio * seconds * 1e9
    ):
        return True
    if (
        _growth(before.owing_io_bytes, now.owing_io_bytes)
        > policy.of(SampleReading).bytes_per_s * seconds
    ):
        return True
    # A download shows in no other counter. A loop that sleeps between two polls is not a download.
    wakes = _growth(before.owing_switches, now.owing_switches)
    return wakes > policy.socket_working_switches_per_s * seconds and _ASLEEP not in (
        now.owing_wchan or ""
    )


def _growth(before: int | None, now: int | None) -> int:
    return now - before if before is not None and now is not None else 0


# -- Parts of the agent that are off: as facts, and as notes for the screen


NOTES_MAX = 3
"""Most often the same part is off for the same reason on many ranks. `--json` has all of them."""
RANKS_NAMED = 4


@dataclass(frozen=True, slots=True)
class ProbeOff:
    """A probe of a rank's agent that is off now, and why.

    Source: `RankState.probes_off` (`NAME: REASON`).
    """

    rank: int
    probe: str
    why: str


def probes_off(ranks: Iterable[RankFacts]) -> Iterator[ProbeOff]:
    """All probes that are off, by rank."""
    for facts in ranks:
        for text in facts.agent.probes_off:
            probe, _, why = text.partition(": ")
            yield ProbeOff(facts.rank, probe, why)


def notes(ranks: Iterable[RankFacts]) -> tuple[str, ...]:
    """One sentence for each probe and reason, those of most ranks first."""
    found: dict[tuple[str, str], list[int]] = {}
    for rank in probes_off(ranks):
        found.setdefault((rank.probe, rank.why), []).append(rank.rank)
    first = sorted(found.items(), key=lambda item: -len(item[1]))[:NOTES_MAX]
    return tuple(
        f"the agent's probe {probe!r} is off on {_ranks(numbers)}: {why}"
        for (probe, why), numbers in first
    )


def _ranks(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    named = ", ".join(str(number) for number in numbers[:RANKS_NAMED])
    return f"{len(numbers)} ranks ({named}{', ...' if len(numbers) > RANKS_NAMED else ''})"
