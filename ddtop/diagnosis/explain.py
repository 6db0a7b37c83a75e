"""What each kind of finding means, how it is found and what to do: one page a kind, with the
limits of the policy.

A kind that a rule can produce has a page here; a test holds that.
"""

from __future__ import annotations

from ddtop.diagnosis.kinds import Kind
from ddtop.diagnosis.page import Explanation, fill
from ddtop.diagnosis.table import MODULES
from ddtop.policy import Policy

PAGES: dict[str, Explanation] = {
    page.kind: page
    for page in sorted(
        (page for module in MODULES for page in module.PAGES),
        key=lambda page: list(Kind).index(page.kind),
    )
}
"""By kind, in the order in which they are listed; the values of the policy are not in them yet."""


def explain(kind: str, policy: Policy) -> Explanation | None:
    """The page of this kind; None if there is no such kind."""
    page = PAGES.get(kind)
    return fill(page, policy) if page is not None else None
