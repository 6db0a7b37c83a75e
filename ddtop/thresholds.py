"""The thresholds of this viewer: those of the policy, or those that its user has set.

A viewer is one process of one person. The command line chooses once, before anything is looked at;
the model and the rules get the thresholds as an argument, as always.
"""

from __future__ import annotations

from ddtop.policy import POLICY, Policy

_chosen = POLICY


def chosen() -> Policy:
    """The thresholds by which this viewer judges."""
    return _chosen


def choose(policy: Policy) -> None:
    """Judge by these from now on. Called before the first job is followed."""
    global _chosen
    _chosen = policy
