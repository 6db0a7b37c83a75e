"""The verdict under our policy, and under a second one in which one threshold differs.

    @pytest.mark.parametrize("case", CASES, ids=Case.name)
    def test_the_policy_says_when_a_wait_is_critical(case):
        assert case.said_by_both() == (case.ours, case.theirs)

A case fails if the code ignores the field, or compares in the wrong direction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ddtop.policy import POLICY, Policy
from ddtop.say.told import diagnose
from tests.jobs import FakeJob, brief

Says = Callable[[Policy], object]


@dataclass(frozen=True)
class Case:
    """`about`: what is judged. `field`: the threshold that is `other` in the second policy."""

    about: str
    field: str
    other: float
    says: Says
    ours: object
    theirs: object

    def name(self) -> str:
        """The name that pytest lists."""
        return f"{self.about}, {self.field}"

    def said_by_both(self) -> tuple[object, object]:
        """The results under our policy, and under the second."""
        return self.says(POLICY), self.says(POLICY.with_limits({self.field: self.other}))


def stands(scenario: Callable[..., FakeJob], *given: object, **more: object) -> Says:
    """(severity, kind, ranks) for a viewer that joined 1.5 s before the end."""

    def says(policy: Policy) -> object:
        job = scenario(*given, **more)
        job.policy = policy
        return [brief(one) for one in job.verdicts(joined_s=job.now - 1.5)[-1].findings]

    return says


def stands_from_the_start(scenario: Callable[..., FakeJob], *given: object) -> Says:
    """(severity, kind, ranks) for a viewer that was there all the time."""

    def says(policy: Policy) -> object:
        job = scenario(*given)
        job.policy, job.joined_s = policy, 0.0
        return job.kinds()

    return says


def kinds(scenario: Callable[[], FakeJob]) -> Says:
    """The kinds of what is found in the last snapshot alone."""

    def says(policy: Policy) -> object:
        job = scenario()
        job.policy = policy
        return [one.kind for one in diagnose(job.snapshot(), policy)]

    return says


def text(scenario: Callable[[], FakeJob], words: str) -> Says:
    """Whether the only finding in the last snapshot says these words anywhere."""

    def says(policy: Policy) -> object:
        job = scenario()
        job.policy = policy
        (found,) = diagnose(job.snapshot(), policy)
        return any(words in one for one in (found.summary, *found.evidence, found.advice))

    return says
