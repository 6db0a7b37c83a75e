"""What an explanation consists of, and how limits get into its sentences."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ddtop.diagnosis.kinds import Kind
from ddtop.policy import Policy

NAMED = re.compile(r"\{([\w.-]+)\}")


@dataclass(frozen=True, slots=True)
class Explanation:
    """The page of one kind of finding.

    `severity`: when it is critical, in words. `brief`: one line for a list. `meaning`: what is
    going on in the job. `found`: the facts and limits that make the rule speak. `steps`: what to
    do; what follows a line break is a command. `before` and `after`: typical code, where code is
    the cause. `no_demo`: why no demo on the CPU of one host can show it; empty if one does.

    In `meaning` and `found` the name of a limit in braces stands for its value: `{still_limit_s}`
    reads `5 s`, `{straggler.ratio}` `10 %`.
    """

    kind: Kind
    severity: str
    brief: str
    meaning: str
    found: tuple[str, ...]
    steps: tuple[str, ...]
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    no_demo: str = ""


def fill(page: Explanation, policy: Policy) -> Explanation:
    """The page with the values of this policy in its sentences."""
    values = limits(policy)

    def full(text: str) -> str:
        return NAMED.sub(lambda name: values[name[1]], text)

    found = tuple(map(full, page.found))
    return replace(page, severity=full(page.severity), meaning=full(page.meaning), found=found)


def limits(policy: Policy) -> dict[str, str]:
    """Every limit by its name, as text, with the unit that the name ends in."""
    import ddtop.diagnosis.limits  # noqa: F401 - it knows them all

    return {name: _value(name, value) for name, value in policy.values().items()}


def _value(name: str, value: float) -> str:
    name = f"_{name.rpartition('.')[2]}"
    if name.endswith("_bytes_per_s"):
        return f"{value / 2**20:g} MiB/s" if value >= 2**20 else f"{value / 1024:g} KiB/s"
    if name.endswith("_bytes"):
        return f"{value / 2**30:g} GiB" if value >= 2**30 else f"{value / 2**20:g} MiB"
    if name.endswith("_per_s"):
        return f"{value:g} a second"
    if name.endswith("_ms"):
        return f"{value:g} ms"
    if name.endswith("_s"):
        return f"{value:g} s" if value >= 1 else f"{value * 1000:g} ms"
    return f"{value * 100:g} %" if name.endswith("_ratio") else f"{value:g}"
