"""Cases for thresholds: what is said with our policy, and what with another value of one field."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest

from ddtop.diagnosis.diagnoses import diagnose
from ddtop.policy import POLICY, Policy
from tests.jobs import FakeJob


class Case(NamedTuple):
    """`says` returns `ours` with our value of `field`, and `theirs` with the value `other`.

    `kind`: what is judged, a name for the list of tests.
    """

    kind: str
    field: str
    other: float
    says: Callable[[Policy], object]
    ours: object
    theirs: object

    def said(self) -> tuple[object, object]:
        """What is said with our policy, and with the other one."""
        return self.says(POLICY), self.says(replace(POLICY, **{self.field: self.other}))


def each(cases: Sequence[Case]) -> pytest.MarkDecorator:
    """A test for each of these cases."""
    return pytest.mark.parametrize("case", cases, ids=[f"{one.kind}-{one.field}" for one in cases])


def kinds(make: Callable[[], FakeJob]) -> Callable[[Policy], list[str]]:
    """The kinds of the findings in the last snapshot of that job."""

    def says(policy: Policy) -> list[str]:
        job = make()
        job.policy = policy
        return [one.kind for one in diagnose(job.snapshot(), policy)]

    return says


def text(make: Callable[[], FakeJob], words: str) -> Callable[[Policy], bool]:
    """Whether the only finding about that job says these words anywhere."""

    def says(policy: Policy) -> bool:
        job = make()
        job.policy = policy
        (found,) = diagnose(job.snapshot(), policy)
        return any(words in one for one in (found.summary, *found.evidence, found.advice))

    return says
