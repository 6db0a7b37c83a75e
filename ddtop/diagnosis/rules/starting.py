"""`late-to-init`, `rank-missing`, and before the start also `left-early` and `rank-killed`: ranks
wait in init_process_group for ranks that have not called it.

`rules.rendezvous` runs first: a rank that connects to the wrong address is not late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ddtop import launch
from ddtop.diagnosis.rendezvous import LOOPBACK, Joining, has_entered, joining_of, store_of
from ddtop.diagnosis.rule import (
    CRITICAL,
    WARNING,
    Context,
    Explanation,
    Finding,
    Kind,
    Policy,
    RuleRow,
    Waits,
)
from ddtop.diagnosis.standstill import sleep_left_s
from ddtop.model.ending import CANCEL_SIGNALS, has_failed
from ddtop.model.facts import Candidate, RankFacts, Snapshot, State
from ddtop.wire.records import HelperEnd


@dataclass(frozen=True)
class Starting(Waits, of="starting"):
    """`late-to-init` and `rank-missing`."""

    init_late_warning_s: float = 10.0
    """Waiting in init_process_group for a rank that is alive and works. Imports differ by a few
    seconds."""
    init_still_line_slack_s: float = 1.0
    """A rank is at one line for `wait_s` less this: the first report of that line came up to
    a second later."""
    init_still_process_slack_s: float = 2.0
    """The same of a process without an agent, which the relay looks at every two seconds."""
    init_late_critical_s: float = 300.0
    """A wait this long is not for an import, and critical. Half of the group's own timeout if
    shorter."""
    init_missing_critical_s: float = 60.0
    """A missing rank is a warning until then, while the process that started the others lives and
    may start more. Launchers pause between ranks, for tens of seconds at most."""
    store_dial_critical_s: float = 30.0
    """A launcher has looked for the store for this time. Nodes start within it, and torchrun gives
    up after a minute."""


_NODES = tuple(name for launcher in launch.every_launcher() for name in launcher.nodes_of_job)
_DEFAULT_TIMEOUT_S = {"nccl": 600.0}
_TIMEOUT_S = 1800.0
"""Torch's default."""


class Awaited(NamedTuple):
    """The ranks for which others wait, which are those of the finding.

    `dead`: the processes that may have become these ranks. `candidates`: those that still may.
    `elsewhere`: why the ranks may be on hosts that do not report here, a word and its numbers.
    """

    joining: Joining
    dead: Sequence[HelperEnd] = ()
    candidates: Sequence[Candidate] = ()
    elsewhere: Sequence[object] = ()


def rule(context: Context) -> list[Finding]:
    """Finds the ranks for which the others wait. Silent once a rank has communicated."""
    snapshot, policy = context.snapshot, context.policy
    joining = joining_of(snapshot)
    if joining is None:
        return []
    findings = _left_findings(snapshot, joining, policy) or _killed_findings(
        snapshot, joining, policy
    )
    if not findings and joining.inside:
        findings = _late_findings(snapshot, joining, policy)
    return findings or _missing_findings(snapshot, joining, policy)


def _left_findings(snapshot: Snapshot, joining: Joining, policy: Policy) -> list[Finding]:
    """Ranks that ended normally before they joined."""
    gone = [rank for rank in snapshot.ranks if rank.gone and not has_failed(rank)]
    if not gone or joining.waited_s < policy.gone_limit_s:
        return []
    first = min(rank.process.exit_unix_ns or 0 for rank in gone)
    since, ranks = max(joining.since_unix_ns, first), [rank.rank for rank in gone]
    return [_finding(Kind.LEFT_EARLY, ranks, Awaited(joining), since)]


def _finding(
    kind: Kind,
    ranks: Sequence[int],
    seen: Awaited,
    since_unix_ns: int | None = None,
    severity: str = CRITICAL,
) -> Finding:
    """`since_unix_ns`: if it is not the time at which the first rank began to wait."""
    victims, since = seen.joining.waiting_without(ranks), seen.joining.since_unix_ns
    return Finding(kind, severity, tuple(ranks), victims, since_unix_ns or since, seen=seen)


def _killed_findings(snapshot: Snapshot, joining: Joining, policy: Policy) -> list[Finding]:
    """Processes beside the ranks that a signal ended before they said which rank they are.

    There is no process left that may become a missing rank, and one has died for each of them.
    """
    missing = _absent(snapshot)
    helpers = (helper for host in snapshot.hosts for helper in host.helpers)
    dead = [
        helper
        for helper in helpers
        if not helper.launcher and helper.signal not in (None, *CANCEL_SIGNALS)
    ]
    if joining.waited_s < policy.gone_limit_s or len(missing) != len(dead):
        return []
    if not missing or _candidates(snapshot, missing):
        return []
    since = min(helper.unix_ns for helper in dead)
    return [_finding(Kind.RANK_KILLED, missing, Awaited(joining, dead=dead), since)]


# -- alive, and not there


def _late_findings(snapshot: Snapshot, joining: Joining, policy: Policy) -> list[Finding]:
    late = [rank for rank in snapshot.ranks if _is_late(rank)]
    still = [rank for rank in late if _stands(rank, policy)]
    late = still if still and joining.waited_s > policy.wait_s(Starting) else late
    limits, of_still = policy.of(Starting), late is still
    if late and (of_still or joining.waited_s > limits.init_late_warning_s):
        critical = of_still or joining.waited_s > _late_limit_s(joining, policy)
        ranks, severity = [rank.rank for rank in late], CRITICAL if critical else WARNING
        return [_finding(Kind.LATE_TO_INIT, ranks, Awaited(joining), severity=severity)]
    missing = _absent(snapshot)
    return _late_candidates(snapshot, joining, missing, policy) if missing and not late else []


def _late_limit_s(joining: Joining, policy: Policy) -> float:
    """From when a wait for ranks that work is critical."""
    limit_s = policy.of(Starting).init_late_critical_s
    return min(limit_s, policy.timeout_critical_ratio * timeout_s(joining))


def _is_late(rank: RankFacts) -> bool:
    if rank.hello is None or rank.gone or has_entered(rank):
        return False
    return rank.state is State.STARTING or (
        rank.state is State.SILENT and rank.reported.phase == "starting"
    )


def _stands(rank: RankFacts, policy: Policy) -> bool:
    """Whether it does nothing and has been at one line for a while. A slow import wakes up and
    reads in between. A sleep that ends soon is a pause: ranks that all start at once would overload
    the file server.
    """
    if 0 < (sleep_left_s(rank) or 0.0) <= policy.of(Starting).init_late_critical_s:
        return False
    if rank.process.working is not False or (
        rank.process.report is not None and rank.process.report.state == "D"
    ):
        return False
    if rank.state is State.SILENT:
        return (rank.agent.report_age_s or 0.0) >= policy.wait_s(Starting)
    if rank.reported.waits_on == "import":
        return False
    return (
        rank.reported.line_age_s is not None
        and rank.reported.line_age_s
        >= policy.wait_s(Starting) - policy.of(Starting).init_still_line_slack_s
    )


def _late_candidates(
    snapshot: Snapshot, joining: Joining, missing: tuple[int, ...], policy: Policy
) -> list[Finding]:
    """Processes that look like ranks of the job but have no rank number yet, or a number that no
    agent has claimed.
    """
    candidates = _candidates(snapshot, missing)
    if not candidates or joining.waited_s < policy.wait_s(Starting):
        return []
    severity = _candidates_severity(snapshot, joining, candidates, policy)
    if severity == WARNING and joining.waited_s < policy.of(Starting).init_late_warning_s:
        return []
    numbered = {
        candidate.process.rank for candidate in candidates if candidate.process.rank is not None
    }
    ranks = [rank for rank in missing if rank in numbered] or missing
    seen = Awaited(joining, candidates=candidates)
    return [_finding(Kind.LATE_TO_INIT, ranks, seen, severity=severity)]


def _candidates_severity(
    snapshot: Snapshot, joining: Joining, candidates: list[Candidate], policy: Policy
) -> str:
    """Critical at once for a process that makes no progress; for one that works, imports or sleeps
    as long as its script says, after the limit of a rank that works.
    """
    seen_s = min(
        (snapshot.time_unix_ns - candidate.since_unix_ns) / 1e9 for candidate in candidates
    )
    still = all(
        candidate.stands_still
        and not candidate.imports
        and not candidate.sleep_left_s(snapshot.time_unix_ns)
        for candidate in candidates
    )
    if still and seen_s > policy.wait_s(Starting) - policy.of(Starting).init_still_process_slack_s:
        return CRITICAL
    return CRITICAL if joining.waited_s > _late_limit_s(joining, policy) else WARNING


def _candidates(snapshot: Snapshot, missing: tuple[int, ...]) -> list[Candidate]:
    return [
        candidate
        for candidate in snapshot.candidates
        if candidate.process.rank is None or candidate.process.rank in missing
    ]


# -- never seen


def _absent(snapshot: Snapshot) -> tuple[int, ...]:
    return tuple(rank.rank for rank in snapshot.ranks if rank.state is State.MISSING)


def _missing_findings(snapshot: Snapshot, joining: Joining, policy: Policy) -> list[Finding]:
    missing = _absent(snapshot)
    if not missing or joining.waited_s <= policy.init_missing_limit_s:
        return []
    if any(_is_late(rank) for rank in snapshot.ranks) or _candidates(snapshot, missing):
        # The ranks are still starting: those that exist have not called it either.
        return []
    elsewhere = _elsewhere(snapshot)
    # Launchers pause between two ranks.
    early = joining.waited_s < policy.of(Starting).init_missing_critical_s
    unsure = elsewhere or (early and any(host.launching for host in snapshot.hosts))
    seen, severity = Awaited(joining, elsewhere=elsewhere), WARNING if unsure else CRITICAL
    return [_finding(Kind.RANK_MISSING, missing, seen, severity=severity)]


def _elsewhere(snapshot: Snapshot) -> tuple[object, ...]:
    """Why ranks may be on hosts that do not report here: of `Awaited`. Empty if the job has one
    host according to its variables.
    """
    hellos = [rank.hello for rank in snapshot.ranks if rank.hello is not None]
    hosts = {hello.host for hello in hellos}
    for name in _NODES:
        nodes = max((_number(hello.environment.get(name)) for hello in hellos), default=0)
        if nodes > 1:
            return ("nodes", name, nodes) if len(hosts) < nodes else ()
    local = max((launch.local_size(hello.environment) or 0 for hello in hellos), default=0)
    if local and len(hosts) * local < snapshot.world_size:
        return "local", local, snapshot.world_size
    far = [
        rank
        for rank in snapshot.ranks
        if rank.comm.rendezvous is not None and rank.comm.rendezvous.local is False
    ]
    address = next(
        (found[0] for rank in far if (found := store_of(rank)) and found[0] not in LOOPBACK), None
    )
    return ("store", address) if address and len(hosts) == 1 else ()


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 8 else 0


def timeout_s(joining: Joining) -> float:
    """When init_process_group times out (s): its argument, else torch's default."""
    found = []
    for rank in joining.inside:
        hello = rank.hello
        if hello is not None:
            given = hello.init_timeout_ms
            found.append(
                given / 1000 if given else _DEFAULT_TIMEOUT_S.get(hello.backend or "", _TIMEOUT_S)
            )
    return min(found, default=_TIMEOUT_S)


# -- `rank-missing` and `master-unreachable` before there is a rank: torchrun waits for other
#    nodes, or for the store where they meet


def launcher_waits(context: Context) -> list[Finding]:
    """One finding for each launcher that waits."""
    policy, now, findings = context.policy, context.snapshot.time_unix_ns, []
    limits = policy.of(Starting)
    for launcher in context.snapshot.launchers:
        kind, missing, least_s, critical_s = (
            (
                Kind.RANK_MISSING,
                launcher.nodes > (launcher.nodes_there or 1),
                policy.init_missing_limit_s,
                limits.init_missing_critical_s,
            )
            if launcher.probe is None
            else (
                Kind.MASTER_UNREACHABLE,
                launcher.probe != "open",
                limits.init_late_warning_s,
                limits.store_dial_critical_s,
            )
        )
        since, waited_s = now - int(launcher.waited_s * 1e9), launcher.waited_s
        severity = CRITICAL if waited_s >= critical_s else WARNING
        if missing and waited_s >= least_s:
            findings.append(Finding(kind, severity, (), (), since, seen=launcher))
    return findings


ROWS = (
    RuleRow(
        launcher_waits,
        (Kind.RANK_MISSING, Kind.MASTER_UNREACHABLE),
        "launchers without ranks: their command lines and sockets",
        needs=("launchers",),
    ),
    RuleRow(
        rule,
        (Kind.LEFT_EARLY, Kind.RANK_KILLED, Kind.LATE_TO_INIT, Kind.RANK_MISSING),
        "which ranks are inside init_process_group, alive outside, dead or never seen",
        silenced_by=("rendezvous",),
    ),
)
PAGES = (
    Explanation(
        kind=Kind.RANK_MISSING,
        severity="critical; a warning if the rank may run on a host that does not report",
        brief="not started; others wait in init_process_group",
        meaning=(
            "WORLD_SIZE is larger than the number of ranks that were started. The started ranks"
            " wait for the missing ones in init_process_group, by default for 30 minutes (10 with"
            " NCCL), and print nothing."
        ),
        found=(
            (
                "Every process with RANK and WORLD_SIZE reports as soon as it starts. No process"
                " with this rank number has reported on any host, and other ranks have been in"
                " init_process_group for {init_missing_limit_s}."
            ),
            (
                "It is a warning if a variable (SLURM_NNODES, GROUP_WORLD_SIZE) names more hosts"
                " than report here."
            ),
            (
                "Before there are any ranks, torchrun waits for its nodes. The connections to its"
                " store show how many nodes have come. It is a warning after"
                " {init_missing_limit_s}, and critical after {starting.init_missing_critical_s}."
            ),
        ),
        steps=(
            "Count the processes that were started:\nps -eo pid,args | grep SCRIPT",
            (
                "torchrun: --nnodes times --nproc-per-node is the world size. Start torchrun on"
                " every node."
            ),
            (
                "Slurm: use one task per rank, or one torchrun per node, not both:\nsqueue -j ID"
                " -o '%D nodes, %C cpus'"
            ),
            (
                "Started by hand: start a process with the missing RANK, or set WORLD_SIZE to the"
                " number of processes, on all ranks."
            ),
            "The rank may run without DDTOP=1. Then ddtop cannot see it.",
        ),
        before=("mp.spawn(train, args=(4,), nprocs=3)     # world_size=4",),
        after=("mp.spawn(train, args=(world,), nprocs=world)",),
    ),
    Explanation(
        kind=Kind.LATE_TO_INIT,
        severity="critical; a warning while the rank visibly works",
        brief="alive, but not in init_process_group, where others wait",
        meaning=(
            "The rank is alive but has not called init_process_group yet: it imports, prepares"
            " data, or sleeps. The others are inside and wait for it."
        ),
        found=(
            (
                "The rank has reported but has not called init_process_group. Or it is a process"
                " of the same job that has no rank number yet (mp.spawn)."
            ),
            (
                "It is critical if the rank makes no progress at one line and others have been"
                " inside for {starting.wait_s}. While the rank works or imports, or pauses in a"
                " sleep that ends soon, it is a warning after {starting.init_late_warning_s}, which"
                " is shown once it has stood for {brief.stood_s}, and critical after"
                " {starting.init_late_critical_s} or half of the group's timeout."
            ),
        ),
        steps=(
            (
                "The finding names its source line. See what it waits for there:\nddtop stacks JOB"
                " --rank R"
            ),
            "If the import of torch is slow, copy the environment to a local disk of each host.",
            (
                "If one rank downloads or preprocesses data, do that before the job. Or let all "
                "ranks join first, and then wait in a barrier with a long timeout."
            ),
        ),
        before=(
            "if int(os.environ['RANK']) == 0:",
            "    tokenise_everything()                 # 40 minutes",
            "dist.init_process_group('gloo')",
        ),
        after=("dist.init_process_group('gloo', timeout=timedelta(hours=2))",),
    ),
)
