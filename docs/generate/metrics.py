"""The page of all numbers and words that ddtop shows."""

from __future__ import annotations

from ddtop.metrics import FAMILIES, METRICS, SERIES_MAX
from docs.generate.markdown import code, head, table


def page() -> str:
    """`reference/metrics.md`."""
    lines = head(
        "Metrics",
        "ddtop/metrics.py",
        "Every number and word on the screen: its unit, what it means, where ddtop reads it, and"
        " how to check it by hand. The name is the key in JSON where there is one.",
        "`-` on the screen and `null` in JSON mean *not measured*. `0` means *measured zero*.",
    )
    rows = ((code(one.name), one.unit, one.meaning, one.source, code(one.check)) for one in METRICS)
    lines += table(("name", "unit", "meaning", "source", "check by hand"), rows)
    lines += [
        "## Series",
        "",
        f"What `ddtop exporter` serves. A job has at most {SERIES_MAX} series, whatever its size."
        " Each has the label `job`, but for the first two.",
        "",
    ]
    series = (
        (code(one.name), one.kind, ", ".join(map(code, one.labels)), str(one.most), one.meaning)
        for one in FAMILIES
    )
    return "\n".join(lines + table(("name", "type", "labels", "most", "meaning"), series))
