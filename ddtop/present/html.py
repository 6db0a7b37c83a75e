"""`ddtop report --html`: the report as one page for a browser, without a script or a request. Pure.

Names, paths and texts come from jobs, which may be hostile. All text goes through `_Page.text`, and
the page forbids the browser everything but its own style.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape

from ddtop.diagnosis.finding import Finding
from ddtop.follow.lanes import ASLEEP, COLLECTIVE, DATA, GONE, GPU, STEPS, WORK, parts_of
from ddtop.model.stacks import Merged
from ddtop.present.documents import DIAGNOSE_SCHEMA, diagnose_json, each_text
from ddtop.present.findings import severity_mark
from ddtop.present.report import (
    SECTION_BYTES_MAX,
    WIDTH,
    Material,
    head_facts,
    redacted,
    sections,
    without_secrets,
)
from ddtop.present.stacks import Around, Shape, stacks_lines
from ddtop.present.strip import MEASURES
from ddtop.present.text import UNICODE, clean, plain
from ddtop.say.said import that_hold
from ddtop.words import units
from ddtop.words.sentences import ranks_text

CLASSES_MAX = 32
ROWS = 40
"""Height of a curve, in units of its picture."""
KEYS = {
    WORK: ("work", "at work"),
    COLLECTIVE: ("wait", "in a collective"),
    DATA: ("data", "waits for data"),
    GPU: ("gpu", "waits for its GPU"),
    ASLEEP: ("still", "asleep"),
}
"""The colours of a lane, and what they mean."""
OPEN = ("Tracebacks", "What happened")
"""These sections are unfolded; the verdict and the stacks have a form of their own."""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1c2128;--dim:#59636e;--line:#d1d9e0;--card:#f6f8fa;
--critical:#cf222e;--warning:#9a6700;--info:#0969da;--work:#3b82c4;--wait:#e0a030;--still:#9aa4ae;--data:#a371f7;--gpu:#2da44e}
@media(prefers-color-scheme:dark){:root{--bg:#0d1117;--fg:#e6edf3;--dim:#9198a1;--line:#3d444d;
--card:#151b23;--critical:#ff7b72;--warning:#d29922;--info:#79c0ff;--work:#4a90d9;--wait:#d9a441;
--still:#6e7681}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:76rem;padding:1rem;background:var(--bg);color:var(--fg);
font:15px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.3rem;margin:.2rem 0}h2{font-size:1.05rem;margin:1.6rem 0 .4rem}
.dim,.axis,.curve{color:var(--dim)}
section.finding{border-left:.35rem solid var(--line);background:var(--card);padding:.6rem .9rem;
margin:.7rem 0}
.critical{border-color:var(--critical)!important}.critical>h2{color:var(--critical)}
.warning{border-color:var(--warning)!important}.warning>h2{color:var(--warning)}
.info{border-color:var(--info)!important}
section.finding h2{margin:0}.do{font-weight:600;margin:.4rem 0}
ul{margin:.3rem 0;padding-left:1.2rem}
li{white-space:pre-wrap}
pre{font:12.5px/1.45 ui-monospace,monospace;overflow-x:auto;background:var(--card);padding:.6rem;
margin:.3rem 0}
details{border-top:1px solid var(--line);padding:.35rem 0}summary{cursor:pointer}
svg{display:block;width:100%;height:1.15rem;background:var(--card)}
.row{display:grid;grid-template-columns:6.5rem 1fr;align-items:center;gap:.5rem;margin:2px 0}
.culprit span{color:var(--critical);font-weight:600}
.curve{margin-top:.5rem;font-size:.85em}.curve svg{height:3.6rem}
.axis{display:flex;justify-content:space-between;margin-left:7rem;font-size:.85em}
i{display:inline-block;font-style:normal;margin-right:1rem}
i b{display:inline-block;width:.8em;height:.8em;margin-right:.3em}
.work{fill:var(--work);background:var(--work)}.wait{fill:var(--wait);background:var(--wait)}
.still{fill:var(--still);background:var(--still)}
.data{fill:var(--data);background:var(--data)}.gpu{fill:var(--gpu);background:var(--gpu)}
.line{fill:none;stroke:var(--work);stroke-width:2;vector-effect:non-scaling-stroke}
.began{stroke:var(--critical);stroke-width:2;vector-effect:non-scaling-stroke}
"""


def report_html(material: Material) -> str:
    """The whole page."""
    return _Page(replace(material, verdict=without_secrets(material.verdict))).html()


@dataclass(frozen=True, slots=True)
class _Page:
    material: Material

    def text(self, text: str) -> str:
        """The text for a browser: redacted, without control characters, and with no mark-up."""
        return escape("\n".join(map(clean, redacted(text, self.material.home).split("\n"))))

    def html(self) -> str:
        job, verdict = self.text(self.material.snapshot.job), self.material.verdict
        parts = [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            f"<title>{job} - ddtop report</title><style>{_STYLE}</style></head><body>",
            f"<h1>{job}</h1>",
            f'<p class="dim">{self.text("; ".join(head_facts(self.material)[:4]))}</p>',
            *(f"<p>{self.text(one)}</p>" for one in (verdict.unheard,) if one),
            *(self._finding(finding) for finding in verdict.findings),
            *([] if verdict.findings else [f"<p>{self.text(verdict.calm)}</p>"]),
            *self._board(),
        ]
        for title, body in sections(self.material):
            if title == "Stacks":
                parts += self._stacks()
            elif title != "Verdict":
                parts.append(self._folded(title, body, title in OPEN))
        parts += [self._folded("About", "\n".join(head_facts(self.material))), self._json()]
        return "\n".join([*parts, "</body></html>\n"])

    def _folded(self, title: str, body: str, opened: bool = False) -> str:
        start = "<details open>" if opened else "<details>"
        return f"{start}<summary>{self.text(title)}</summary><pre>{self.text(body)}</pre></details>"

    def _finding(self, finding: Finding) -> str:
        """The sentence, what to do, what was seen, and who waits."""
        about = (
            f"{finding.severity}: {finding.kind}, since {units.clock(finding.since_unix_ns)}",
            *that_hold((finding.ranks, f"at fault: {ranks_text(finding.ranks, 12)}")),
            *that_hold((finding.victims, f"waiting: {ranks_text(finding.victims, 12)}")),
        )
        seen = "".join(f"<li>{self.text(line)}</li>" for line in finding.evidence)
        mark = f"{severity_mark(finding.severity)[0]} {finding.summary}"
        return (
            f'<section class="finding {escape(finding.severity)}"><h2>{self.text(mark)}</h2>'
            f'<p class="do">{self.text(finding.advice)}</p><ul>{seen}</ul>'
            f'<p class="dim">{self.text("; ".join(about))}</p></section>'
        )

    # -- the board: lanes of ranks, and curves of the job

    def _board(self) -> Iterator[str]:
        """A lane for each rank and a curve for each number, over the same minutes."""
        material, until_unix_ns = self.material, self.material.until_unix_ns
        last_s = until_unix_ns // units.SECOND_NS
        began_s = min((one.seconds[0] for one in material.lanes.values() if one.seconds), default=0)
        if not began_s:
            return
        cells = last_s - began_s + 1
        first_unix_ns = until_unix_ns - cells * units.SECOND_NS
        findings = material.verdict.findings
        began = "".join(
            f'<path class="began" d="M{at:.1f} 0v{ROWS}"/>'
            for finding in findings
            if (at := (finding.since_unix_ns - first_unix_ns) / units.SECOND_NS) >= 0
        )
        yield f"<h2>The last {units.duration(cells)}</h2>"
        culprits = {rank for finding in findings for rank in finding.ranks}
        for rank, memory in material.lanes.items():
            lane = "".join(_lane(memory.lane_until(last_s, cells)))
            picture = _picture(lane + began, cells, STEPS)
            name = "culprit" if rank in culprits else ""
            yield f'<div class="row {name}"><span>rank {rank}</span>{picture}</div>'
        for measure in MEASURES:
            found = [
                ((point.unix_ns - first_unix_ns) / units.SECOND_NS, value)
                for point in material.points
                if point.unix_ns >= first_unix_ns
                and (value := measure.field(point.numbers)) is not None
            ]
            most = max((value for _, value in found), default=0.0)
            if most > 0:
                line = "L".join(f"{at:.1f} {ROWS - value / most * ROWS:.1f}" for at, value in found)
                picture = _picture(f'<path class="line" d="M{line}"/>{began}', cells, ROWS)
                now, top = measure.text(found[-1][1]), measure.text(most)
                text = self.text(f"{measure.label} {now}, from 0 to {top}")
                yield f'<div class="row curve"><span>{text}</span>{picture}</div>'
        ends = [units.clock(at) for at in (first_unix_ns, until_unix_ns)]
        yield f'<div class="axis"><span>{ends[0]}</span><span>{ends[1]}</span></div>'
        signs = "".join(f'<i><b class="{name}"></b>{text}</i> ' for name, text in KEYS.values())
        yield f'<p class="dim">{signs}<i>red line: a finding began</i></p>'

    # -- stacks, and the facts for programs

    def _stacks(self) -> Iterator[str]:
        """Those that differ are unfolded."""
        material, merged = self.material, self.material.merged
        yield f"<h2>Stacks</h2><p>{self.text(material.stacks_note or '')}</p>"
        if merged is None:
            return
        for stack_class in merged.main[:CLASSES_MAX]:
            alone = replace(merged, classes=(stack_class,), odd=frozenset(), unanswered=())
            title, *body = _stack_lines(alone, material.around or Around())
            opened = merged.is_odd(stack_class) or len(merged.main) == 1
            yield self._folded(title.lstrip("└─ "), "\n".join(body), opened)
        rest = replace(merged, classes=merged.others)
        yield self._folded("other threads", "\n".join(_stack_lines(rest, Around())))

    def _json(self) -> str:
        found = each_text(
            diagnose_json(self.material.snapshot, self.material.verdict),
            lambda text: redacted(text, self.material.home),
        )
        text = json.dumps(found, indent=1)
        if len(text) > SECTION_BYTES_MAX:
            text = "it is too large for this page: ddtop diagnose --json"
        # Not through `text`: its escapes have no control characters, and its texts are redacted.
        return (
            f'<details><summary>{DIAGNOSE_SCHEMA}</summary><pre id="json">{escape(text)}</pre>'
            "</details>"
        )


def _picture(content: str, width: int, height: int) -> str:
    """An SVG without text, which a narrow window would make unreadable."""
    box = f'viewBox="0 0 {width} {height}" preserveAspectRatio="none"'
    return f"<svg {box}>{content}</svg>"


def _lane(cells: Sequence[int | None]) -> Iterator[str]:
    """At work from below, above it what the rank waited for in the rest of the second."""
    paths: dict[int, list[str]] = {kind: [] for kind in KEYS}
    for at, cell in enumerate(cells):
        kind, work = (GONE, 0) if cell is None else parts_of(cell)
        if kind != GONE:
            paths[kind].append(f"M{at} 0h1v{STEPS - work}h-1z")
            paths[WORK].append(f"M{at} {STEPS - work}h1V{STEPS}h-1z")
    for kind, drawn in paths.items():
        yield f'<path class="{KEYS[kind][0]}" d="{"".join(drawn)}"/>'


def _stack_lines(merged: Merged, around: Around) -> Sequence[str]:
    lines = stacks_lines(merged, WIDTH, UNICODE, around, Shape(frames=True))
    return [plain(line) for line in lines]
