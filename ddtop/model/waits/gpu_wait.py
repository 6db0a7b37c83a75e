"""Whether a rank's main thread waits for its card.

Waiting for a card takes a whole core: cudaStreamSynchronize, which `loss.item()` ends in, spins, and so does a launch whose queue is
full. From outside that is a rank that computes; what tells it apart is that it does so inside one line of Python, with a collective
of NCCL open that nothing moves.
"""

from __future__ import annotations

from collections.abc import Iterable

from ddtop.model.state.facts import RankFields
from ddtop.policy import Policy
from ddtop.wire.records import Group


def on_nccl(groups: Iterable[Group]) -> frozenset[str]:
    """The names of those groups whose collectives run on cards."""
    return frozenset(group.name for group in groups if "nccl" in group.backend)


def stands_in_line(facts: RankFields, policy: Policy) -> bool:
    """For seconds its main thread has been inside one call and no collective has come back, and its card does not compute, as far as that
    can be told. In a job that its cards hold up each look finds the host in the same call: only both together are a standstill."""
    still_s = min(facts.line_age_s or 0.0, facts.collective_age_s or 0.0)
    return still_s >= policy.same_line_s and not facts.gpu_computes
