"""Rules of other packages: the entry points of the group `ddtop.findings`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from typing import TYPE_CHECKING

from ddtop import plugins
from ddtop.diagnosis.explain import PAGES
from ddtop.diagnosis.finding import INFO, Context, Finding
from ddtop.diagnosis.page import Explanation
from ddtop.diagnosis.row import RuleRow
from ddtop.diagnosis.table import TABLE

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ABOVE = "comm_error"
"""Rules of plugins are above this row, the first of those that report what is left."""


@dataclass(frozen=True, slots=True)
class Added:
    """What the entry point is: a rule, and a page for each of its kinds."""

    row: RuleRow
    pages: tuple[Explanation, ...]


@cache
def load() -> None:
    """Add the rules of all installed plugins to the table, once."""
    plugins.load(plugins.FINDINGS, _add)


def _add(point: EntryPoint) -> None:
    """Add a rule and its pages.

    Raises:
        ValueError: a kind of it is known already, or has no page.
    """
    added: Added = point.load()
    row, pages = added.row, {str(page.kind): page for page in added.pages}
    if set(pages) != set(row.kinds) or not PAGES.keys().isdisjoint(pages):
        raise ValueError(f"it needs one page for each of its kinds, all new: {list(row.kinds)}")
    PAGES.update(pages)
    above = [one.name for one in TABLE].index(ABOVE)
    guarded = RuleRow(_guarded(point, row), row.kinds, row.reads, leaves_out=row.leaves_out)
    TABLE.insert(above, guarded)


def _guarded(point: EntryPoint, row: RuleRow) -> Callable[[Context], list[Finding]]:
    """The rule with its conditions. Once it has raised it is left out, and a finding says so."""

    @wraps(row.rule)
    def rule(context: Context) -> list[Finding]:
        why = plugins.left_out.get(point.value)
        if why is None:
            try:
                return _found(row, context)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - code of another package
                why = plugins.left_out[point.value] = plugins.reason(error)
        text = f"the plugin {point.name} is left out, because its rule raised {why}"
        return [Finding(row.kinds[0], INFO, (), (), context.snapshot.time_unix_ns, text)]

    return rule


def _found(row: RuleRow, context: Context) -> list[Finding]:
    if not row.can_speak(context) or row.silencers(context):
        return []
    found = row.rule(context)
    if any(one.kind not in row.kinds for one in found):
        raise ValueError(f"it may report {list(row.kinds)} and nothing else: {found}")
    return found
