"""The input of a rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ddtop.diagnosis.finding import Finding
from ddtop.model.state.facts import Snapshot
from ddtop.policy import Policy


@dataclass(frozen=True, slots=True)
class Context:
    """The only argument of a rule.

    A rule reads it and changes nothing.
    """

    #: The job at one moment. For ranks whose host is not heard: only what cannot have changed.
    snapshot: Snapshot
    #: Every threshold.
    policy: Policy
    #: The same moment, with the last known facts of ranks whose host is not heard.
    last_known: Snapshot
    #: What the rules before this one found, as later rules have completed it.
    found: tuple[Finding, ...] = ()
    #: The same by rule, as each rule reported it.
    reported: Mapping[str, tuple[Finding, ...]] = field(default_factory=dict)
    #: The ranks that the rules in its row's `leaves_out` have reported.
    explained: frozenset[int] = frozenset()
