"""What an explanation consists of, and how thresholds get into its sentences."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from ddtop.diagnosis.kinds import Kind
from ddtop.policy import Policy


@dataclass(frozen=True, slots=True)
class Explanation:
    """The page of one kind of finding.

    `severity`: when it is critical, in words. `brief`: one line for a list. `meaning`: what is
    going on in the job. `found`: the facts and limits that make the rule speak. `steps`: what to
    do; what follows a line break is a command. `before` and `after`: typical code, where code is
    the cause.

    In `meaning` and `found` the name of a field of `Policy` in braces stands for its value:
    `{still_limit_s}` reads `5 s`.
    """

    kind: Kind
    severity: str
    brief: str
    meaning: str
    found: tuple[str, ...]
    steps: tuple[str, ...]
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


def filled(page: Explanation, policy: Policy) -> Explanation:
    """The page with the values of this policy in its sentences."""
    values = limits(policy)
    found = tuple(text.format_map(values) for text in page.found)
    severity, meaning = (text.format_map(values) for text in (page.severity, page.meaning))
    return replace(page, severity=severity, meaning=meaning, found=found)


def limits(policy: Policy) -> dict[str, str]:
    """Every threshold by its name, as text, with the unit that the name ends in."""
    return {field.name: _text(field.name, getattr(policy, field.name)) for field in fields(policy)}


def _text(name: str, value: float | tuple[float, ...]) -> str:
    values = value if isinstance(value, tuple) else (value,)
    return ", ".join(_value(name, one) for one in values)


def _value(name: str, value: float) -> str:
    if name.endswith("_bytes_per_s"):
        return f"{value / 1024:g} KiB/s"
    if name.endswith("_bytes"):
        return f"{value / 2**30:g} GiB"
    if name.endswith("_per_s"):
        return f"{value:g} a second"
    if name.endswith("_ms"):
        return f"{value:g} ms"
    if name.endswith("_s"):
        return f"{value:g} s" if value >= 1 else f"{value * 1000:g} ms"
    return f"{value * 100:g} %" if name.endswith("_ratio") else f"{value:g}"
