"""All that a module of rules is made of, for one import."""

from __future__ import annotations

from ddtop.diagnosis.finding import CRITICAL, INFO, WARNING, Context, Finding, Patience
from ddtop.diagnosis.kinds import Kind
from ddtop.diagnosis.page import Explanation
from ddtop.diagnosis.row import (
    CAUSES,
    MOVES,
    OF_WAITS,
    RUNS,
    STARTS,
    RuleRow,
    anything_critical,
    backend_reports_error,
    job_has_ended,
    standstill_is_explained,
    waits_are_explained,
)
from ddtop.policy import Limits, Policy, Waits

__all__ = [
    "CAUSES",
    "CRITICAL",
    "INFO",
    "MOVES",
    "OF_WAITS",
    "RUNS",
    "STARTS",
    "WARNING",
    "Context",
    "Explanation",
    "Finding",
    "Kind",
    "Limits",
    "Patience",
    "Policy",
    "RuleRow",
    "Waits",
    "anything_critical",
    "backend_reports_error",
    "job_has_ended",
    "standstill_is_explained",
    "waits_are_explained",
]
