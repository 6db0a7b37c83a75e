"""Whether a rank's main thread waits for its GPU.

Waiting for a GPU takes a whole core: cudaStreamSynchronize, which `loss.item()` calls, spins, and
so does a launch whose queue is full. From outside that looks like a rank that computes. The
difference is that it stays inside one line of Python, with an open NCCL collective that does not
move.
"""

from __future__ import annotations

from collections.abc import Iterable

from ddtop.model.state.facts import RankFields
from ddtop.policy import Policy
from ddtop.wire.records import Group


def on_nccl(groups: Iterable[Group]) -> frozenset[str]:
    """The names of the groups whose collectives run on GPUs."""
    return frozenset(group.name for group in groups if "nccl" in group.backend)


def stuck_on_gpu(facts: RankFields, policy: Policy) -> bool:
    """Whether its main thread is stuck in one call on the GPU.

    For seconds it has been inside one call, no collective has completed, and its GPU does not
    compute as far as that is known. In a job that is limited by its GPUs each report finds the host
    in the same call, so only both together mean no progress.
    """
    still_s = min(facts.reported.line_age_s or 0.0, facts.comm.collective_age_s or 0.0)
    return still_s >= policy.same_line_s and not facts.gpu.computes
