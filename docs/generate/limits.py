"""The page of all limits that the config file may set, with their reasons from the code."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from itertools import pairwise

import ddtop.diagnosis.limits  # noqa: F401 - it knows them all
from ddtop.policy import BLOCKS, POLICY, Limits, Policy, Waits
from docs.generate.markdown import code, head, table

TITLES = ("limit", "default", "why")


def page() -> str:
    """`reference/limits.md`."""
    lines = head(
        "Limits",
        "ddtop/policy.py",
        "From when on a number is too large, and what you can set in your [config"
        " file](../howto/config.md). The end of a name is the unit. A reason that begins with"
        ' "..." continues the one before.',
    )
    lines += ["## `[limits]`", "", *table(TITLES, _rows("", Policy))]
    for name, block in sorted(BLOCKS.items()):
        source = code(f"{block.__module__.replace('.', '/')}.py")
        lines += [f"## `[limits.{name}]`", "", f"{block.__doc__} Source: {source}.", ""]
        lines += table(TITLES, _rows(f"{name}.", block))
    return "\n".join(lines)


def _rows(prefix: str, owner: type[Policy | Limits]) -> Iterator[tuple[str, str, str]]:
    values = POLICY.values()
    reasons = (_reasons(Waits) if issubclass(owner, Waits) else {}) | _reasons(owner)
    for one, why in reasons.items():
        if (name := prefix + one) in values:
            default = "`still_limit_s`" if one == "wait_s" else f"{values[name]:.12g}"
            yield code(one), default, why


def _reasons(owner: type) -> dict[str, str]:
    """The text below each field."""
    found = ast.parse(inspect.getsource(owner)).body[0]
    assert isinstance(found, ast.ClassDef)
    return {
        ast.unparse(one.target): " ".join(ast.literal_eval(text.value).split())
        for one, text in pairwise(found.body)
        if isinstance(one, ast.AnnAssign) and isinstance(text, ast.Expr)
    }
