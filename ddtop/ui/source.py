"""The seam between the screens and the world.

The app asks a `Source` what is true now; whether that comes from a relay, a journal or a test is none of its
business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ddtop.diagnosis.finding import Verdict
from ddtop.model.facts import Snapshot


@dataclass(frozen=True, slots=True)
class Look:
    """What is true now.

    `snapshot` is None until the first records came. `contact` is None while the facts are live, else one sentence
    ("relay not heard for 8 s, trying again"); `contact_age_s` is how old the facts are then.
    """

    snapshot: Snapshot | None
    verdict: Verdict
    contact: str | None = None
    contact_age_s: float | None = None


class Source(Protocol):
    """Where the facts come from; `run` and `look` are called on one event loop."""

    async def run(self) -> None:
        """Feed itself until it is cancelled."""

    def look(self) -> Look:
        """What is true now; cheap enough to be asked twice a second."""

    def set_interval(self, seconds: float) -> None:
        """How often a new look is wanted."""
