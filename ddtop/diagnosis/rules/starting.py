"""`late-to-init`, `rank-missing`, and before the start also `left-early` and `rank-killed`: ranks
wait in init_process_group for ranks that have not called it.

`rules.rendezvous` runs first: a rank that connects to the wrong address is not late.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ddtop import launch
from ddtop.diagnosis.evidence import place_line, process_line, stack_lines
from ddtop.diagnosis.finding import CRITICAL, WARNING, Context, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.diagnosis.rendezvous import (
    INIT,
    LOOPBACK,
    WHY_NOT,
    Joining,
    has_entered,
    joining_of,
    path_line,
    store_of,
)
from ddtop.diagnosis.standstill import sleep_left_s
from ddtop.launch.launchers import is_elastic
from ddtop.model.ending import CANCEL_SIGNALS, has_failed
from ddtop.model.facts import Candidate, RankFacts, Snapshot, State
from ddtop.model.stacks import Owner, owner_of
from ddtop.policy import Policy, Waits
from ddtop.say.places import where_text
from ddtop.wire.records import StackFrame
from ddtop.words.sentences import exit_text, file_line, quoted, rank_list, ranks_text, verb
from ddtop.words.units import duration


@dataclass(frozen=True)
class Starting(Waits, of="starting", was=""):
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
    ranks = tuple(rank.rank for rank in gone)
    return [
        Finding(
            kind=Kind.LEFT_EARLY,
            severity=CRITICAL,
            ranks=ranks,
            victims=joining.victims,
            since_unix_ns=max(
                joining.since_unix_ns, min(rank.process.exit_unix_ns or 0 for rank in gone)
            ),
            summary=(
                f"{ranks_text(ranks)} ended with exit code 0 before {joining.init};"
                f" {joining.wait_text} for {verb(ranks, 'it', 'them')}"
            ),
            evidence=tuple(line for rank in gone[:4] if (line := place_line(rank)) is not None),
            advice=f"every rank must enter {joining.init}, even a rank that has nothing to do",
        )
    ]


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
    how = ", ".join(f"pid {helper.pid} by {exit_text(None, helper.signal)}" for helper in dead[:8])
    return [
        Finding(
            kind=Kind.RANK_KILLED,
            severity=CRITICAL,
            ranks=missing,
            victims=joining.victims,
            since_unix_ns=min(helper.unix_ns for helper in dead),
            summary=(
                f"{ranks_text(missing)} {verb(missing, 'was', 'were')} killed before"
                f" {joining.init} ({how}); {joining.wait_text} for {verb(missing, 'it', 'them')},"
                f" {duration(joining.waited_s)} so far"
            ),
            evidence=tuple(
                f"pid {helper.pid}: {helper.command}" for helper in dead[:8] if helper.command
            ),
            advice=(
                "find out who sent the signal: SIGKILL usually comes from the out-of-memory killer"
                f" (dmesg | grep -i kill); {_left_to_wait(joining)}"
            ),
        )
    ]


# -- alive, and not there


def _late_findings(snapshot: Snapshot, joining: Joining, policy: Policy) -> list[Finding]:
    late = [rank for rank in snapshot.ranks if _is_late(rank)]
    still = [rank for rank in late if _stands(rank, policy)]
    if still and joining.waited_s > policy.wait_s(Starting):
        return [_late_finding(snapshot, joining, still, CRITICAL)]
    if late and joining.waited_s > policy.of(Starting).init_late_warning_s:
        limit_s = min(
            policy.of(Starting).init_late_critical_s,
            policy.timeout_critical_ratio * timeout_s(joining),
        )
        return [
            _late_finding(
                snapshot, joining, late, CRITICAL if joining.waited_s > limit_s else WARNING
            )
        ]
    missing = _absent(snapshot)
    return _late_candidates(snapshot, joining, missing, policy) if missing and not late else []


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
    if rank.reported.place is not None and rank.reported.place.waits_on == "import":
        return False
    return (
        rank.reported.line_age_s is not None
        and rank.reported.line_age_s
        >= policy.wait_s(Starting) - policy.of(Starting).init_still_line_slack_s
    )


def _late_finding(
    snapshot: Snapshot, joining: Joining, late: list[RankFacts], severity: str
) -> Finding:
    ranks = tuple(rank.rank for rank in late)
    lead, now = late[0], snapshot.time_unix_ns
    since = lead.reported.place.since_unix_ns if lead.reported.place is not None else None
    it = verb(ranks, "it", "them")
    if severity == CRITICAL:
        here = (
            f" for {duration((now - since) / 1e9)}"
            if since is not None and lead.process.working is False
            else ""
        )
        subject = (
            f"{ranks_text(ranks)} {verb(ranks, 'has', 'have')} been {where_text(lead)}"
            f"{here}, not in {joining.init} yet"
        )
    else:
        subject = (
            f"{ranks_text(ranks)} {verb(ranks, 'is', 'are')} not in {joining.init} yet, still"
            f" {_busy_text(lead)}"
        )
    lines = [
        line
        for rank in late[:4]
        for line in (process_line(rank), place_line(rank))
        if line is not None
    ]
    for rank in late[:2]:
        lines += stack_lines(rank)
    if severity == WARNING:
        advice = (
            f"let {it} finish; do work that takes minutes before the start, or set a longer"
            " timeout="
        )
        if joining.init == "MPI_Init":
            advice = f"let {it} finish"
    elif lead.process.working is False:
        advice = (
            f"see what {verb(ranks, 'it waits', 'they wait')} for: ddtop stacks"
            f" {quoted(snapshot.job)} --rank {rank_list(ranks)}"
        )
    else:
        advice = f"move this work before the start of the job, or after {joining.init}"
        if joining.init == INIT:
            advice = (
                "move this work before the start of the job, or give init_process_group a longer"
                " timeout="
            )
    return Finding(
        kind=Kind.LATE_TO_INIT,
        severity=severity,
        ranks=ranks,
        victims=joining.waiting_without(ranks),
        since_unix_ns=joining.since_unix_ns,
        summary=f"{subject}; {joining.wait_text} for {it}, {duration(joining.waited_s)} so far",
        evidence=tuple(lines),
        advice=f"{advice}; {_left_to_wait(joining)}",
    )


def _busy_text(rank: RankFacts) -> str:
    if rank.reported.place is not None and rank.reported.place.waits_on == "import":
        return where_text(rank)
    return f"working {where_text(rank)}" if rank.process.working else where_text(rank)


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
    ranks = tuple(rank for rank in missing if rank in numbered) or missing
    return [
        Finding(
            kind=Kind.LATE_TO_INIT,
            severity=severity,
            ranks=ranks,
            victims=joining.victims,
            since_unix_ns=joining.since_unix_ns,
            summary=(
                f"{_candidates_text(snapshot, joining, ranks, candidates)}; "
                f"{joining.wait_text}, {duration(joining.waited_s)} so far"
            ),
            evidence=tuple(_candidate_line(candidate) for candidate in candidates[:8]),
            advice=(
                f"see what it is: ps -fp {candidates[0].process.pid}; if it is Python, see where"
                f" it is: py-spy dump --pid {candidates[0].process.pid}; {_left_to_wait(joining)}"
            ),
        )
    ]


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
        and not _sleeps_s(candidate, snapshot.time_unix_ns)
        for candidate in candidates
    )
    if still and seen_s > policy.wait_s(Starting) - policy.of(Starting).init_still_process_slack_s:
        return CRITICAL
    limit_s = min(
        policy.of(Starting).init_late_critical_s, policy.timeout_critical_ratio * timeout_s(joining)
    )
    return CRITICAL if joining.waited_s > limit_s else WARNING


def _candidates_text(
    snapshot: Snapshot, joining: Joining, ranks: tuple[int, ...], candidates: list[Candidate]
) -> str:
    what = "process" if len(candidates) == 1 else "processes"
    pids = [candidate.process.pid for candidate in candidates]
    shown = ", ".join(str(pid) for pid in pids[:8])
    marks = {
        candidate.candidacy.mark for candidate in candidates if candidate.candidacy is not None
    }
    mark = next(iter(marks)) if len(marks) == 1 else "of the same parent"
    subject = f"{what} {shown} {mark}" if mark.startswith("of ") else f"{what} {shown} ({mark})"
    if all(candidate.imports for candidate in candidates):
        began = min(
            (
                candidate.candidacy.started_unix_ns or 0
                for candidate in candidates
                if candidate.candidacy is not None
            ),
            default=0,
        )
        age = f", {duration((snapshot.time_unix_ns - began) / 1e9)}" if began else ""
        return (
            f"{ranks_text(ranks)} {verb(ranks, 'is', 'are')} still importing torch{age}: {subject} "
            + f"{verb(pids, 'has', 'have')} not loaded it yet"
        )
    text = f"{ranks_text(ranks)} {verb(ranks, 'has', 'have')} not entered {joining.init}: {subject}"
    sleeps = [_sleeps_s(candidate, snapshot.time_unix_ns) for candidate in candidates]
    if all(sleeps):
        return f"{text} {verb(pids, 'sleeps', 'sleep')} for another {duration(max(sleeps))}"
    return f"{text} {verb(pids, 'is', 'are')} {_candidates_do(candidates)}"


_SLEEP = re.compile(r"(?:/\S+/)?sleep (\d+(?:\.\d+)?)([smhd]?)")
_SECONDS_IN = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def _sleeps_s(candidate: Candidate, now_unix_ns: int) -> float:
    """How many seconds of its command `sleep` are left; 0 if it runs another command or the time is
    over. Scripts start ranks one after the other in this way.
    """
    candidacy = candidate.candidacy
    command = _SLEEP.fullmatch((candidacy and candidacy.command) or "")
    if candidacy is None or command is None or candidacy.started_unix_ns is None:
        return 0.0
    asked_s = float(command[1]) * _SECONDS_IN[command[2]]
    return max(0.0, asked_s - (now_unix_ns - candidacy.started_unix_ns) / 1e9)


def _candidates(snapshot: Snapshot, missing: tuple[int, ...]) -> list[Candidate]:
    return [
        candidate
        for candidate in snapshot.candidates
        if candidate.process.rank is None or candidate.process.rank in missing
    ]


def _candidates_do(candidates: list[Candidate]) -> str:
    if all(candidate.stands_still for candidate in candidates):
        frame = _user_frame(candidates[0])
        if frame is not None:
            return f"stuck in {frame.function} ({file_line(frame)})"
        call = candidates[0].process.syscall
        return f"stuck (in {call})" if call else "stuck"
    if all(candidate.lacks_cpu for candidate in candidates):
        return "ready to run, but other processes have the CPUs"
    return (
        "still working"
        if any(candidate.working or candidate.woke for candidate in candidates)
        else "alive"
    )


def _user_frame(candidate: Candidate) -> StackFrame | None:
    frames = candidate.candidacy.frames if candidate.candidacy is not None else ()
    return next((frame for frame in frames if owner_of(frame) is Owner.USER), None)


def _candidate_line(candidate: Candidate) -> str:
    process = candidate.process
    text = f"pid {process.pid} on {candidate.host}: state {process.state}"
    text += f", {candidate.cpu_ratio:.0%} of a core" if candidate.cpu_ratio is not None else ""
    text += (
        f", in {process.syscall}{f' of {process.file}' if process.file else ''}"
        if process.syscall
        else f", wchan {process.wchan}"
        if process.wchan
        else ""
    )
    if candidate.candidacy is not None:
        command = f", {candidate.candidacy.command}" if candidate.candidacy.command else ""
        return f"{text}; {candidate.candidacy.mark}{command}"
    return f"{text}; RANK={process.rank} in its environment" if process.rank is not None else text


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
    unseen = unseen_hosts(snapshot)
    comes = (
        f"{ranks_text(missing)} {verb(missing, 'has', 'have')} not joined: {joining.words.size} is"
        f" {snapshot.world_size}"
    )
    tail = f"{joining.wait_text}, {duration(joining.waited_s)} so far"
    number, many = joining.words.number, rank_list(missing[:64])
    numbers = f"{number}={missing[0]}" if len(missing) == 1 else f"{number} {many}"
    last = f"no process with {numbers} was seen on any host that reports"
    hosts = sorted({rank.host for rank in snapshot.ranks if rank.host is not None})
    lines = [
        f"{ranks_text(tuple(rank.rank for rank in snapshot.ranks if rank.hello))} on"
        f" {', '.join(hosts[:8])}"
    ]
    if unseen is not None:
        last = f"only {', '.join(hosts[:8])} {verb(hosts, 'reports', 'report')} here, {unseen}"
    lines += [line for rank in joining.inside[:4] if (line := path_line(rank)) is not None]
    return [
        Finding(
            kind=Kind.RANK_MISSING,
            severity=(
                CRITICAL
                if unseen is None and not _may_still_come(snapshot, joining, policy)
                else WARNING
            ),
            ranks=missing,
            victims=joining.victims,
            since_unix_ns=joining.since_unix_ns,
            summary=f"{comes}, {tail}; {last}",
            evidence=tuple(lines),
            advice=(
                f"{_missing_advice(snapshot, joining, missing, unseen)}; {_left_to_wait(joining)}"
            ),
        )
    ]


def _may_still_come(snapshot: Snapshot, joining: Joining, policy: Policy) -> bool:
    """Whether the launcher lives and it is early: launchers pause between two ranks."""
    return joining.waited_s < policy.of(Starting).init_missing_critical_s and any(
        host.launching for host in snapshot.hosts
    )


def _missing_advice(
    snapshot: Snapshot, joining: Joining, missing: tuple[int, ...], unseen: str | None
) -> str:
    seen = [rank.hello for rank in snapshot.ranks if rank.hello is not None]
    if unseen is not None:
        return (
            f"check that the job runs on the other hosts: ddtop status {quoted(snapshot.job)} there"
        )
    if any(is_elastic(hello.environment) for hello in seen):
        return (
            "find out why the launcher did not start it: check --nproc-per-node, --nnodes and its"
            " output"
        )
    if all(hello.claim == "init" for hello in seen):
        size = joining.words.size.lower()
        return (
            f"{size} is {snapshot.world_size}, but {len(seen)} processes joined: start as many as"
            f" {size} says"
        )
    return f"start it with RANK={missing[0]}, or set WORLD_SIZE={len(seen)} on all ranks"


def unseen_hosts(snapshot: Snapshot) -> str | None:
    """Why ranks may be on hosts that do not report here. None if the job has one host according to
    its variables.
    """
    hellos = [rank.hello for rank in snapshot.ranks if rank.hello is not None]
    hosts = {hello.host for hello in hellos}
    for name in _NODES:
        nodes = max((_number(hello.environment.get(name)) for hello in hellos), default=0)
        if nodes > 1:
            return f"but {name} is {nodes}" if len(hosts) < nodes else None
    local = max((launch.local_size(hello.environment) or 0 for hello in hellos), default=0)
    if local and len(hosts) * local < snapshot.world_size:
        return f"but each host runs only {local} of {snapshot.world_size} ranks"
    far = [
        rank
        for rank in snapshot.ranks
        if rank.comm.rendezvous is not None and rank.comm.rendezvous.local is False
    ]
    address = next(
        (found[0] for rank in far if (found := store_of(rank)) and found[0] not in LOOPBACK), None
    )
    return f"and the store is on another host ({address})" if address and len(hosts) == 1 else None


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


def _left_to_wait(joining: Joining) -> str:
    if joining.init == "MPI_Init":
        return "MPI_Init has no timeout"
    if not joining.inside:
        return f"{joining.init} has ended"
    left_s = timeout_s(joining) - joining.waited_s
    return (
        f"{joining.init} times out in {duration(left_s)}"
        if left_s > 0
        else "its timeout has passed"
    )


# -- `rank-missing` and `master-unreachable` before there is a rank: torchrun waits for other
#    nodes, or for the store where they meet


def launcher_waits(context: Context) -> list[Finding]:
    """One finding for each launcher that waits."""
    policy, now, findings = context.policy, context.snapshot.time_unix_ns, []
    limits = policy.of(Starting)
    for launcher in context.snapshot.launchers:
        waited = duration(launcher.waited_s)
        kind, limits_s = (
            Kind.RANK_MISSING,
            (policy.init_missing_limit_s, limits.init_missing_critical_s),
        )
        missing = launcher.nodes - (launcher.nodes_there or 1)
        nodes = (
            f"{missing} of {launcher.nodes} nodes"
            if launcher.nodes_there
            else f"the other nodes of {launcher.nodes}"
        )
        text = f"has waited {waited} for {nodes} at {launcher.place}"
        advice = (
            "start it on the other nodes, with the same --nnodes and the same address; to test the"
            " connection from there"
        )
        if launcher.probe is not None:
            kind, limits_s = (
                Kind.MASTER_UNREACHABLE,
                (limits.init_late_warning_s, limits.store_dial_critical_s),
            )
            missing = launcher.probe != "open"
            why = WHY_NOT.get(launcher.probe, launcher.probe)
            text = f"cannot reach the store at {launcher.place} ({why}), for {waited}"
            advice = (
                "start the node that opens the store there; check --rdzv-endpoint or --master-addr"
            )
        if missing <= 0 or launcher.waited_s < limits_s[0]:
            continue
        findings.append(
            Finding(
                kind=kind,
                severity=CRITICAL if launcher.waited_s >= limits_s[1] else WARNING,
                ranks=(),
                victims=(),
                since_unix_ns=now - int(launcher.waited_s * 1e9),
                summary=(
                    f"the launcher of {launcher.script} (pid {launcher.pid}) {text}; no rank yet"
                ),
                evidence=(),
                advice=f"{advice}: nc -zv {' '.join(map(quoted, launcher.place.split(':')))}",
            )
        )
    return findings
