"""A viewer of a simulated job: the model and the judge over its frames, as the dashboard has
them.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddtop.diagnosis.finding import Verdict
from ddtop.diagnosis.judge import Judge
from ddtop.model.facts import Snapshot
from ddtop.model.job import Job
from ddtop.policy import POLICY
from ddtop.say.told import look
from ddtop.sim.incidents import Incident, Scenario
from ddtop.sim.job import SimulatedJob
from ddtop.wire import frames

SECOND = 1_000_000_000
BEGAN = 1_700_000_000 * SECOND


def simulated(
    world_size: int,
    *incidents: Incident,
    seed: int = 0,
    restarts_s: float | None = None,
    skew_s: float = 0.0,
) -> SimulatedJob:
    """A job to which this happens, from BEGAN on."""
    return SimulatedJob(
        world_size, seed, Scenario(incidents, restarts_s, skew_s), began_unix_ns=BEGAN
    )


def at(seconds: float) -> int:
    """This long after its beginning, unix ns."""
    return BEGAN + round(seconds * SECOND)


class Watcher:
    """Looks at a job once a second, starting at one moment."""

    def __init__(self, job: SimulatedJob, from_s: float = 0.0) -> None:
        self.job, self.now_s = job, from_s
        self.model, self.judge = Job(job.name, POLICY), Judge(POLICY)
        self._take(job.joining(at(from_s)))

    def _take(self, found: Iterator[bytes]) -> None:
        for data in found:
            envelope = frames.open_envelope(data)
            self.model.apply(envelope, frames.open_record(envelope))

    def until(self, seconds: float) -> tuple[Snapshot, Verdict]:
        """The look at this time after the job's beginning."""
        found = None
        while self.now_s < seconds:
            before, self.now_s = self.now_s, min(self.now_s + 1.0, seconds)
            self._take(self.job.frames(at(before), at(self.now_s)))
            found = look(self.judge, self.model.snapshot(at(self.now_s)))
        assert found is not None, "time only goes on"
        return found
