"""`version-skew`: ranks run another Python, torch or script than the others."""

from __future__ import annotations

from collections import Counter

from ddtop.diagnosis.context import Context
from ddtop.diagnosis.finding import WARNING, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.wire.records import Hello
from ddtop.words.ranks import by_value, ranks_text, verb


def rule(context: Context) -> list[Finding]:
    """One finding for all ranks that differ. Values that a rank has not reported yet are not
    compared."""
    snapshot = context.snapshot
    hellos = {rank.rank: rank.hello for rank in snapshot.ranks if rank.hello is not None}
    if len({(one.torch, one.python, one.script, one.script_digest) for one in hellos.values()}) < 2:
        return []
    odd: set[int] = set()
    lines, parts = [], []
    for name, values in (
        ("torch", {rank: hello.torch for rank, hello in hellos.items() if hello.torch}),
        ("Python", {rank: hello.python for rank, hello in hellos.items() if hello.python}),
        ("script", _scripts(hellos)),
    ):
        counts = Counter(values.values())
        if len(counts) < 2:
            continue
        (usual, most), (_, second) = counts.most_common(2)
        differing = {rank for rank, value in values.items() if value != usual or most == second}
        odd |= differing
        versions = [f"{ranks_text(ranks)}: {value}" for value, ranks in by_value(values).items()]
        lines.append(f"{name}: " + "; ".join(versions[:6]))
        parts.append(f"{name} ({', '.join(versions[:3])})")
    if not parts:
        return []
    ranks = tuple(sorted(odd))
    same = "different versions" if len(odd) == len(hellos) else "other versions than the rest"
    return [
        Finding(
            kind=Kind.VERSION_SKEW,
            severity=WARNING,
            ranks=ranks,
            victims=(),
            since_unix_ns=max(hellos[rank].started_unix_ns for rank in ranks),
            summary=f"{ranks_text(ranks)} {verb(ranks, 'runs', 'run')} {same}: {', '.join(parts)}",
            evidence=(*lines, *(_where(rank, hellos[rank]) for rank in ranks[:4])),
            advice=(
                "start all ranks from one environment and one copy of the script: the same calls"
                " must be made on all of them"
            ),
        )
    ]


def _scripts(hellos: dict[int, Hello]) -> dict[int, str]:
    """Digests of scripts with one name. Programs with different names differ on purpose."""
    if len({hello.script for hello in hellos.values()}) > 1:
        return {}
    return {
        rank: f"{hello.script} {hello.script_digest}"
        for rank, hello in hellos.items()
        if hello.script_digest
    }


def _where(rank: int, hello: Hello) -> str:
    return (
        f"rank {rank} on {hello.host}: Python {hello.python or '?'}, torch {hello.torch or '?'},"
        f" {' '.join(hello.argv[:3])}"
    )
