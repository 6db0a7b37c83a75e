"""`rank-missing` and `master-unreachable` before there is a rank: torchrun waits for other nodes,
or for the store where they meet.
"""

from __future__ import annotations

from ddtop.diagnosis.context import Context
from ddtop.diagnosis.finding import CRITICAL, WARNING, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.diagnosis.rendezvous import WHY_NOT
from ddtop.words.units import duration


def rule(context: Context) -> list[Finding]:
    """One finding for each launcher that waits."""
    policy, now, found = context.policy, context.snapshot.time_unix_ns, []
    for one in context.snapshot.launchers:
        waited = duration(one.waited_s)
        kind, limits_s = (
            Kind.RANK_MISSING,
            (policy.init_missing_limit_s, policy.init_missing_critical_s),
        )
        missing = one.nodes - (one.nodes_there or 1)
        nodes = (
            f"{missing} of {one.nodes} nodes"
            if one.nodes_there
            else f"the other nodes of {one.nodes}"
        )
        text = f"has waited {waited} for {nodes} at {one.place}"
        advice = (
            "start it on the other nodes, with the same --nnodes and the same address; from there"
        )
        if one.probe is not None:
            kind, limits_s = (
                Kind.MASTER_UNREACHABLE,
                (policy.init_late_warning_s, policy.store_dial_critical_s),
            )
            missing = one.probe != "open"
            why = WHY_NOT.get(one.probe, one.probe)
            text = f"cannot reach the store at {one.place} ({why}), for {waited}"
            advice = (
                "start the node there that opens the store; see --rdzv-endpoint or --master-addr"
            )
        if missing <= 0 or one.waited_s < limits_s[0]:
            continue
        found.append(
            Finding(
                kind=kind,
                severity=CRITICAL if one.waited_s >= limits_s[1] else WARNING,
                ranks=(),
                victims=(),
                since_unix_ns=now - int(one.waited_s * 1e9),
                summary=f"the launcher of {one.script} (pid {one.pid}) {text}; no rank yet",
                evidence=(),
                advice=f"{advice}: nc -zv {one.place.replace(':', ' ')}",
            )
        )
    return found
