"""`ddtop report`: everything that is known about a job as one text for a ticket. Pure. The text is
redacted, and bounded as the last step.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ddtop import redaction
from ddtop.diagnosis.finding import Verdict
from ddtop.follow.history import Memory, Point
from ddtop.grouped import grouped
from ddtop.launch import every_launcher
from ddtop.model.facts import RankFacts, Snapshot
from ddtop.model.stacks import Merged
from ddtop.present.events import ListedEvent, timeline_lines
from ddtop.present.groups import members_text
from ddtop.present.plain import diagnose_text, table_lines
from ddtop.present.stacks import Around, Shape, stacks_text, tracebacks_text
from ddtop.present.text import clean
from ddtop.wire.records import Hello
from ddtop.words import units
from ddtop.words.sentences import by_value, group_name, progress_text, ranks_text

# -- Redacts a text that others will read: everything that looks like a secret is removed
#
# Agents redact their reports by the same patterns (`ddtop.redaction`). A relay or an older agent
# may not, and source lines and paths are added only here.


def redacted(text: str, home: str | None = None) -> str:
    """The text without what looks like a secret; `home`, the user's folder, becomes `~`."""
    text = redaction.redact(text)
    if home and len(home.rstrip("/")) > 1:
        text = re.sub(re.escape(home.rstrip("/")) + r"(?![\w.-])", "~", text)
    return text


# -- The report of a job for a ticket


WIDTH = 120
BYTES_MAX = 1 << 20
SECTION_BYTES_MAX = 120 << 10
"""Seven sections of this and the head are below `BYTES_MAX`."""
_OWN = tuple(name for launcher in every_launcher() for name in launcher.own_to_rank)
"""Variables that every launcher sets to a different value for each rank."""


@dataclass(frozen=True, slots=True)
class Material:
    """The input of the report.

    `seen`: a sentence about the source of the facts. `merged` None: no stacks, and `stacks_note`
    says why; with stacks it says what is missing. `happened`: the recent events; if they are not
    known, `timeline_note` says why. `lanes`: the last minutes of some ranks, those at fault first,
    and `points` those of the job, up to `until_unix_ns`; for the page alone.
    """

    written_unix_ns: int
    version: str
    seen: str
    snapshot: Snapshot
    verdict: Verdict
    merged: Merged | None = None
    around: Around | None = None
    stacks_note: str | None = None
    happened: tuple[ListedEvent, ...] = ()
    timeline_note: str | None = None
    garbled: int = 0
    home: str | None = None
    lanes: Mapping[int, Memory] = field(default_factory=dict)
    points: tuple[Point, ...] = ()
    until_unix_ns: int = 0


def report_text(material: Material) -> str:
    """The whole report: Markdown whose every table and listing is a block of plain text."""
    material = replace(material, verdict=without_secrets(material.verdict))
    parts = [f"# ddtop report: {clean(material.snapshot.job)}", ""]
    parts += [f"- {line}" for line in head_facts(material)]
    for title, body in sections(material):
        parts += ["", f"## {title}", "", "````text", body.replace("````", "'''' "), "````"]
    return _cut(redacted("\n".join(parts), material.home), BYTES_MAX - 256) + "\n"


def sections(material: Material) -> Iterator[tuple[str, str]]:
    """The parts of the report, each with its title; redacted and bounded."""
    snapshot, verdict = material.snapshot, material.verdict
    found = [
        ("Verdict", diagnose_text(snapshot, verdict, WIDTH)),
        # The verdict stands above: only the table.
        ("Ranks", "\n".join(table_lines(snapshot, verdict, WIDTH))),
        *([("Tracebacks", raised)] if (raised := tracebacks_text(snapshot.ranks)) else []),
        ("Stacks", _stacks(material)),
        (
            "What happened",
            "\n".join([*timeline_lines(material.happened), *_noted(material.timeline_note)]),
        ),
        ("Environment", "\n".join(_environment(snapshot.ranks))),
        ("Process groups", "\n".join(_groups(snapshot))),
        ("ddtop itself", "\n".join(_health(material))),
    ]
    for title, body in found:
        # Redacted before it is cut, because half a secret cannot be recognised.
        yield title, _cut(redacted(body.rstrip("\n"), material.home), SECTION_BYTES_MAX)


def file_name(job: str, unix_ns: int, ending: str = "md") -> str:
    """`ddtop-report-JOB-YYYYmmdd-HHMMSS.md`, in local time."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(unix_ns // units.SECOND_NS))
    return f"ddtop-report-{job}-{stamp}.{ending}"


def head_facts(material: Material) -> list[str]:
    """What the report is of: when, where, and the versions."""
    snapshot = material.snapshot
    hellos = {rank.rank: rank.hello for rank in snapshot.ranks if rank.hello is not None}
    started = min(
        (hello.started_unix_ns for hello in hellos.values() if hello.started_unix_ns), default=None
    )
    ended, progress = snapshot.ended, snapshot.progress
    lines = [
        f"written: {_date(material.written_unix_ns)} by ddtop {material.version}",
        f"facts: {clean(material.seen)}",
        f"state at {_date(snapshot.time_unix_ns)}: "
        + (f"ended {_date(ended.time_unix_ns)}: {clean(ended.reason)}" if ended else "running"),
        (
            f"ranks: {snapshot.reporting} of {snapshot.world_size} reporting, attempt"
            f" {snapshot.attempt}"
        ),
        f"started: {_date(started)}" if started else "started: not known",
    ]
    if progress is not None:
        source = clean(progress.source)
        lines.append(f"progress: {clean(progress_text(progress))} (source: {source})")
    for what, values in (
        ("hosts", {rank: hello.host for rank, hello in hellos.items()}),
        ("command", {rank: " ".join(hello.argv) or hello.script for rank, hello in hellos.items()}),
        ("Python", {rank: hello.python for rank, hello in hellos.items()}),
        (
            "torch",
            {rank: hello.torch or _not_yet(hello, "not loaded") for rank, hello in hellos.items()},
        ),
        (
            "backend",
            {rank: hello.backend or _not_yet(hello, "none yet") for rank, hello in hellos.items()},
        ),
        ("agent", {rank: hello.agent_version for rank, hello in hellos.items()}),
    ):
        lines.append(f"{what}: {'; '.join(_by_value(values))}")
    return lines


def without_secrets(verdict: Verdict) -> Verdict:
    """Redacted before its lines are wrapped, because a secret on two lines cannot be recognised."""
    findings = tuple(
        replace(
            finding,
            summary=redacted(finding.summary),
            evidence=tuple(redacted(line) for line in finding.evidence),
            advice=redacted(finding.advice),
        )
        for finding in verdict.findings
    )
    return replace(verdict, findings=findings, calm=redacted(verdict.calm))


def _date(unix_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(unix_ns / units.SECOND_NS))


def _by_value(values: Mapping[int, str]) -> list[str]:
    """Each value with the ranks that have it, the most frequent first; alone without them."""
    found = by_value(values)
    order = sorted(found.items(), key=lambda item: (-len(item[1]), item[1]))
    if len(order) == 1:
        return [clean(order[0][0]) or "-"]
    return [f"{clean(value) or '-'} ({ranks_text(ranks, 12)})" for value, ranks in order[:16]]


def _stacks(material: Material) -> str:
    if material.merged is None:
        return material.stacks_note or "no stacks"
    around, shape = material.around or Around(), Shape(threads=True)
    text = stacks_text(material.merged, WIDTH, around=around, shape=shape)
    return "\n".join([*_noted(material.stacks_note), text])


def _noted(note: str | None) -> list[str]:
    return [f"note: {note}"] if note else []


def _environment(ranks: Sequence[RankFacts]) -> list[str]:
    """The variables that differ between ranks first, then those that are equal."""
    hellos = {rank.rank: rank.hello for rank in ranks if rank.hello is not None}
    if not hellos:
        return ["no rank has reported its environment"]
    names = sorted({name for hello in hellos.values() for name in hello.environment})
    differing, common, own = [], [], []
    for name in names:
        values = {rank: hello.environment.get(name) for rank, hello in hellos.items()}
        if len(set(values.values())) == 1:
            common.append(f"  {name}={clean(str(next(iter(values.values()))))}")
        elif name in _OWN:
            own.append(name)
        else:
            shown = {
                rank: "(not set)" if value is None else value for rank, value in values.items()
            }
            differing += [f"  {name}", *(f"    {line}" for line in _by_value(shown))]
    lines = ["differs between ranks:", *(differing or ["  nothing unexpected"])]
    if own:
        lines.append(f"  (each rank has its own {', '.join(own)})")
    several = [
        f"  rank {rank.rank}: pid {', '.join(map(str, rank.claimants.pids))} too"
        for rank in ranks
        if rank.claimants.pids
    ]
    if several:
        lines += ["claimed by more than one process:", *several]
    return [*lines, "", "common to all ranks:", *(common or ["  nothing"])]


def _groups(snapshot: Snapshot) -> list[str]:
    """Each group with its members and their progress."""
    lines = []
    for group in snapshot.groups:
        title = (
            f"{clean(group_name(group))} ({clean(group.backend)}): ranks {members_text(group)}"
            + (f", store {clean(group.foreign)}" if group.foreign else "")
            + (f", torch's name {clean(group.name)}" if group.meanings else "")
        )
        front: dict[str, list[int]] = {}
        for rank in group.ranks:
            progress = next(
                (each for each in snapshot.rank(rank).comm.groups if each.group == group.name), None
            )
            text = "has reported nothing"
            if progress is not None:
                done = "?" if progress.completed is None else str(progress.completed)
                text = f"enqueued {progress.enqueued}, completed {done}"
            front.setdefault(text, []).append(rank)
        lines += [title, *(f"  {ranks_text(ranks, 12)}: {text}" for text, ranks in front.items())]
    return lines or ["no rank has reported a process group"]


def _health(material: Material) -> list[str]:
    """What ddtop lost or could not see, so that nobody trusts the report too much."""
    snapshot, lines = material.snapshot, []
    if material.garbled or snapshot.garbled:
        lines.append(f"{material.garbled + snapshot.garbled:,} records could not be read")
    for host in snapshot.hosts:
        lost = (
            f"{host.dropped:,} frames dropped, {host.refused:,} connections refused,"
            f" {host.garbled:,} frames garbled"
        )
        lines.append(
            f"relay on {clean(host.host)} (pid {host.relay_pid}): {lost},"
            f" {units.long_size(host.relay_rss_bytes)}"
        )
    for what, values in (
        (
            "records dropped by the agent",
            {rank.rank: rank.agent.drops for rank in snapshot.ranks if rank.agent.drops},
        ),
        (
            "probes off",
            {
                rank.rank: ", ".join(rank.agent.probes_off)
                for rank in snapshot.ranks
                if rank.agent.probes_off
            },
        ),
        (
            "flight recorder",
            {rank.rank: rank.agent.recorder for rank in snapshot.ranks if rank.agent.recorder},
        ),
        ("no dump signal", _each(snapshot, "dump_off")),
        ("state page is not shared", _each(snapshot, "page_fallback")),
    ):
        lines += [f"{what}: {line}" for line in _with_ranks(values)]
    lines += [f"note: {clean(note)}" for note in snapshot.notes]
    return lines or ["nothing was lost"]


def _each(snapshot: Snapshot, attribute: str) -> dict[int, str]:
    hellos: dict[int, Hello] = {
        rank.rank: rank.hello for rank in snapshot.ranks if rank.hello is not None
    }
    return {rank: value for rank, hello in hellos.items() if (value := getattr(hello, attribute))}


def _with_ranks(values: Mapping[int, object]) -> list[str]:
    found = grouped((clean(str(value)), rank) for rank, value in values.items())
    return [f"{value} ({ranks_text(ranks, 12)})" for value, ranks in found.items()]


def _cut(text: str, most_bytes: int) -> str:
    """The text, or its first lines and how much was left out."""
    data = text.encode("utf-8", "replace")
    if len(data) <= most_bytes:
        return data.decode("utf-8")
    kept = data[:most_bytes].decode("utf-8", "ignore").rpartition("\n")[0]
    return f"{kept}\n(cut: {len(data) - len(kept.encode()):,} bytes more)"


def _not_yet(hello: Hello, text: str) -> str:
    """The text for a value that a rank with an agent has not reported yet; for other ranks it is
    not known."""
    return text if hello.agent_version else "-"
