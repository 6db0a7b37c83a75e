"""How far the training is, as the program or its framework counts it: a part of a rank's state."""

from __future__ import annotations

import msgspec

TRAIN, VALIDATE, TEST, CHECKPOINT, COMPILE, SANITY_CHECK, IDLE = PHASES = (
    "train",
    "validate",
    "test",
    "checkpoint",
    "compile",
    "sanity-check",
    "idle",
)
"""What a training does. A program may give `ddtop.phase()` a word of its own."""
EXPECTED_CHARACTERS, EXPECTED_MOST_S = 64, 7 * 86_400.0
"""The longest name and the longest time of an expected region. As with a mute, a week is enough."""


class TrainingProgress(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How far the training of this rank is. Numbers are those that the program's own CPU code has
    computed; None where nobody counts them.

    `source`: who counts steps ("hf-trainer", "user", "tqdm"), else who named the phase. `epoch` may
    be a fraction. `phase`: one of PHASES or the program's own word, since `since_unix_ns`.
    `samples_per_s`, `tokens_per_s`: of the whole job, over the last half minute of this phase.
    `loss` may be nan or infinite. `eta_s`: seconds until `total_steps`, at the speed of the last
    ten minutes. `steps_per_s`: as `samples_per_s`. `usual_s`, `longest_s`: the median and the
    longest of the last 16 phases of this name that ended in this process; `phases_ended`: how many
    did.
    """

    source: str
    step: int | None = None
    total_steps: int | None = None
    epoch: float | None = None
    total_epochs: float | None = None
    phase: str | None = None
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    loss: float | None = None
    lr: float | None = None
    eta_s: float | None = None
    since_unix_ns: int | None = None
    steps_per_s: float | None = None
    usual_s: float | None = None
    longest_s: float | None = None
    phases_ended: int = 0


class Speed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How fast a rank trained in two minutes of training.

    `unit`: tokens or samples of the whole job, or steps. `per_s`: the median of four pieces,
    `least_per_s` and `most_per_s` the slowest and the fastest. `step_ms`: the length of a step,
    `loader_ms` of it waiting for the DataLoader; `wait_ratio`: the share of the time in which a
    collective was pending.
    """

    unit: str
    per_s: float
    least_per_s: float
    most_per_s: float
    step_ms: float
    loader_ms: float = 0.0
    wait_ratio: float = 0.0


class Pace(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How fast the training of a rank is, without validations, checkpoints and compilations.

    `now`: the last two minutes of training, which began at `since_unix_ns`. `before`: two minutes
    that ended ten minutes earlier. `start`: the first two minutes after half a minute of warm-up.
    """

    now: Speed
    start: Speed | None = None
    before: Speed | None = None
    since_unix_ns: int | None = None


class Expectation(msgspec.Struct, frozen=True, array_like=True):
    """A region of the program that was announced: `ddtop.expected("export", up_to_s=600)`.

    The rank is in it since `since_unix_ns`, and the program expects it to take `up_to_s` seconds at
    most.
    """

    name: str
    since_unix_ns: int
    up_to_s: float

    @property
    def until_unix_ns(self) -> int:
        """The end of the time that was expected."""
        # In this order the result is 0 for a nan, which an agent of ours does not send.
        seconds = min(max(0.0, self.up_to_s), EXPECTED_MOST_S)
        return self.since_unix_ns + int(seconds * 1e9)
