"""What a viewer adds up over looks at one job: time in iterations, and time lost to stragglers.

Pure: each look gives the next tally. Times are of the snapshots, ns on the hub's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median

from ddtop.model.state.facts import Snapshot
from ddtop.policy import Policy

STEPS_KEPT = 31
"""The usual step time is the median of this many steps."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What was added up since `began_unix_ns`.

    `in_steps_s`: time in iterations of the usual length. `lost_s`: time that ranks waited for
    stragglers. `moved_unix_ns`: when `iteration` moved last.
    """

    policy: Policy
    run: tuple[str, int]
    began_unix_ns: int
    looked_unix_ns: int
    iteration: int | None = None
    moved_unix_ns: int | None = None
    steps_s: tuple[float, ...] = ()
    in_steps_s: float = 0.0
    lost_s: float = 0.0

    @property
    def usual_s(self) -> float | None:
        """The usual time of an iteration."""
        return median(self.steps_s) if self.steps_s else None

    @property
    def goodput_ratio(self) -> float | None:
        """Time in iterations over wall time; None before two iterations were seen to end."""
        if not self.steps_s or self.moved_unix_ns is None:
            return None
        until, usual_s = self.looked_unix_ns, self.usual_s or 0.0
        # An iteration counts when it has ended.
        if until - self.moved_unix_ns < self.policy.goodput_step_factor * usual_s * 1e9:
            until = self.moved_unix_ns
        wall_s = (until - self.began_unix_ns) / 1e9
        return min(self.in_steps_s / wall_s, 1.0) if wall_s > 0 else None


def tally_of(snapshot: Snapshot, before: Tally | None, policy: Policy) -> Tally:
    """The tally after this look. A new run of the job begins a new one; a restart goes on."""
    now = snapshot.time_unix_ns
    run = (snapshot.run, snapshot.attempt)
    if before is None or before.run[0] != run[0]:
        return Tally(policy, run, now, now, snapshot.iteration)
    elapsed_s = max(now - before.looked_unix_ns, 0) / 1e9
    tally = replace(before, run=run, looked_unix_ns=max(now, before.looked_unix_ns))
    if snapshot.ended is not None:
        # The time after the end does not belong to the job.
        return before
    if elapsed_s <= policy.goodput_gap_s and snapshot.still_since_unix_ns is None:
        tally = replace(tally, lost_s=before.lost_s + elapsed_s * _lost_ratio(snapshot))
    return _with_steps(tally, snapshot, before)


def _with_steps(tally: Tally, snapshot: Snapshot, before: Tally) -> Tally:
    now, iteration = snapshot.time_unix_ns, snapshot.iteration
    if iteration is None or iteration == before.iteration:
        return tally
    if before.iteration is None or iteration < before.iteration or tally.run != before.run:
        # The first count of this attempt: how long these took is not known.
        return replace(tally, iteration=iteration, moved_unix_ns=before.moved_unix_ns)
    moved_ns = before.moved_unix_ns
    if moved_ns is None:
        # Goodput begins where an iteration ended.
        return replace(tally, iteration=iteration, moved_unix_ns=now, began_unix_ns=now)
    known = [one.progress.step_ms / 1000 for one in snapshot.ranks if one.progress.step_ms]
    steps_s = (*before.steps_s, median(known))[-STEPS_KEPT:] if known else before.steps_s
    passed_s, done = (now - moved_ns) / 1e9, iteration - before.iteration
    usual_s = median(steps_s) if steps_s else passed_s / done
    return replace(
        tally,
        iteration=iteration,
        moved_unix_ns=now,
        steps_s=steps_s,
        in_steps_s=before.in_steps_s + min(done * usual_s, passed_s),
    )


def _lost_ratio(snapshot: Snapshot) -> float:
    """Share of the time in which ranks wait for a straggler, now; the worst of all groups."""
    return max((one.late.share_ratio for one in snapshot.ranks if one.late), default=0.0)
