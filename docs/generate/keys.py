"""The page of all keys of the dashboard."""

from __future__ import annotations

from ddtop.present.help_text import ACTIONS, MOVES, VIEWS
from docs.generate.markdown import code, head, table


def page() -> str:
    """`reference/keys.md`."""
    lines = head(
        "Keys",
        "ddtop/present/help_text.py",
        "`?` in the dashboard shows the same. `Ctrl+P` finds any command by its words. The names"
        " are for `[keys]` in your [config file](../howto/config.md); of a view `view-map`.",
    )
    lines += [
        "## Views",
        "",
        *table(("key", "view", "shows"), ((code(one.key), one.name, one.meaning) for one in VIEWS)),
    ]
    rows = (
        (_keys(one.shown), code(one.name), one.meaning, ", ".join(one.views) or "all")
        for one in ACTIONS
        if not one.name.startswith("view-")
    )
    lines += ["## Actions", "", *table(("keys", "name", "does", "in the views"), rows)]
    return "\n".join(
        [
            *lines,
            "## In lists",
            "",
            *table(("keys", "do"), ((_keys(keys), text) for keys, text in MOVES)),
        ]
    )


def _keys(shown: str) -> str:
    return " ".join(code(one) for one in shown.split())
