"""What is said of a job that starts: ranks that others wait for, and launchers that wait."""

from __future__ import annotations

from collections.abc import Sequence

from ddtop.diagnosis.rendezvous import INIT, Joining
from ddtop.diagnosis.rules.starting import Awaited, timeout_s
from ddtop.launch.launchers import is_elastic
from ddtop.model.facts import Candidate, Snapshot, WaitingLauncher
from ddtop.model.stacks import Owner, owner_of
from ddtop.say.evidence import place_line, process_line, stack_lines
from ddtop.say.places import where_text
from ddtop.say.said import (
    CRITICAL,
    WARNING,
    Context,
    Finding,
    Kind,
    Said,
    Writer,
    age_text,
    duration,
    lasting,
    lasts_text,
    stacks,
    that_hold,
)
from ddtop.say.topics.rendezvous import WHY_NOT, path_lines, so_far, wait_text, words_of
from ddtop.words.sentences import exit_text, file_line, quoted, rank_list, ranks_text, verb


def awaited(finding: Finding, seen: Awaited, at: Context) -> Said:
    """Why the others wait, and how long they still can."""
    joining, it = seen.joining, verb(finding.ranks, "it", "them")
    if finding.kind == Kind.LEFT_EARLY:
        gone = list(map(at.snapshot.rank, finding.ranks[:4]))
        return Said(
            f"{ranks_text(finding.ranks)} ended with exit code 0 before {joining.init};"
            f" {wait_text(joining)} for {it}",
            tuple(filter(None, map(place_line, gone))),
            f"every rank must enter {joining.init}, even a rank that has nothing to do",
        )
    write = _OF.get(finding.kind, _candidates if seen.candidates else _late)
    return write(finding, seen, at)._replace(countdown=_left_to_wait(joining))


def _left_to_wait(joining: Joining) -> str:
    left_s = max(0.0, timeout_s(joining) - joining.waited_s)
    return that_hold(
        (joining.init == "MPI_Init", "MPI_Init has no timeout"),
        (not joining.inside, f"{joining.init} has ended"),
        (left_s, f"{joining.init} times out in {duration(left_s)}"),
        (True, "its timeout has passed"),
    )[0]


def _killed(finding: Finding, seen: Awaited, _: Context) -> Said:
    ranks, joining, dead = finding.ranks, seen.joining, seen.dead[:8]
    how = ", ".join(f"pid {helper.pid} by {exit_text(None, helper.signal)}" for helper in dead)
    return Said(
        f"{ranks_text(ranks)} {verb(ranks, 'was', 'were')} killed before {joining.init} ({how});"
        f" {wait_text(joining)} for {verb(ranks, 'it', 'them')}, {so_far(joining)}",
        tuple(f"pid {helper.pid}: {helper.command}" for helper in dead if helper.command),
        "find out who sent the signal: SIGKILL usually comes from the out-of-memory killer (dmesg |"
        " grep -i kill)",
    )


# -- Alive, and not there


def _late(finding: Finding, seen: Awaited, at: Context) -> Said:
    ranks, init = finding.ranks, seen.joining.init
    late, it = list(map(at.snapshot.rank, ranks)), verb(ranks, "it", "them")
    lead, place = late[0], late[0].reported.place
    still, since = lead.process.working is False, place.since_unix_ns if place is not None else None
    if finding.severity == CRITICAL:
        here = lasts_text(at, since) if since is not None and still else ""
        doing = f"{verb(ranks, 'has', 'have')} been {where_text(lead)}{here}, not in {init} yet"
    else:
        imports = lead.reported.waits_on == "import"
        works = "working " if lead.process.working and not imports else ""
        doing = f"{verb(ranks, 'is', 'are')} not in {init} yet, still {works}{where_text(lead)}"
    lines = (line for rank in late[:4] for line in (process_line(rank), place_line(rank)))
    return Said(
        f"{ranks_text(ranks)} {doing}; {wait_text(seen.joining)} for {it}, {so_far(seen.joining)}",
        (*filter(None, lines), *(line for rank in late[:2] for line in stack_lines(rank))),
        that_hold(
            (finding.severity == WARNING and init == "MPI_Init", f"let {it} finish"),
            (
                finding.severity == WARNING,
                f"let {it} finish; do work that takes minutes before the start, or set a longer"
                " timeout=",
            ),
            (
                still,
                f"see what {verb(ranks, 'it waits', 'they wait')} for:"
                f" {stacks(finding, at, f' {quoted(at.snapshot.job)} --rank {rank_list(ranks)}')}",
            ),
            (
                init == INIT,
                "move this work before the start of the job, or give init_process_group a longer"
                " timeout=",
            ),
            (True, f"move this work before the start of the job, or after {init}"),
        )[0],
    )


def _candidates(finding: Finding, seen: Awaited, at: Context) -> Said:
    pid = seen.candidates[0].process.pid
    return Said(
        f"{_candidates_text(finding, seen, at)}; {wait_text(seen.joining)}, {so_far(seen.joining)}",
        tuple(map(_candidate_line, seen.candidates[:8])),
        f"see what it is and where it is: ddtop stacks --pid {pid}",
    )


def _candidates_text(finding: Finding, seen: Awaited, at: Context) -> str:
    candidates, ranks = seen.candidates, finding.ranks
    pids = [candidate.process.pid for candidate in candidates]
    known = [one.candidacy for one in candidates if one.candidacy is not None]
    marks = {candidacy.mark for candidacy in known}
    mark = marks.pop() if len(marks) == 1 else "of the same parent"
    subject = f"{verb(pids, 'process', 'processes')} {', '.join(map(str, pids[:8]))}"
    subject += f" {mark}" if mark.startswith("of ") else f" ({mark})"
    if all(candidate.imports for candidate in candidates):
        began = min((candidacy.started_unix_ns or 0 for candidacy in known), default=0)
        age = f", {age_text(at, began)}" if began else ""
        return (
            f"{ranks_text(ranks)} {verb(ranks, 'is', 'are')} still importing torch{age}: {subject}"
            f" {verb(pids, 'has', 'have')} not loaded it yet"
        )
    sleeps = [candidate.sleep_left_s(at.snapshot.time_unix_ns) for candidate in candidates]
    does = (
        f"{verb(pids, 'sleeps', 'sleep')} for another {duration(max(sleeps))}"
        if all(sleeps)
        else f"{verb(pids, 'is', 'are')} {_candidates_do(candidates)}"
    )
    entered = f"{verb(ranks, 'has', 'have')} not entered {seen.joining.init}"
    return f"{ranks_text(ranks)} {entered}: {subject} {does}"


def _candidates_do(candidates: Sequence[Candidate]) -> str:
    candidacy, call = candidates[0].candidacy, candidates[0].process.syscall
    frames = candidacy.frames if candidacy is not None else ()
    own = (frame for frame in frames if owner_of(frame) is Owner.USER)
    places = (f"stuck in {frame.function} ({file_line(frame)})" for frame in own)
    return that_hold(
        (
            all(candidate.stands_still for candidate in candidates),
            next(places, f"stuck (in {call})" if call else "stuck"),
        ),
        (
            all(candidate.lacks_cpu for candidate in candidates),
            "ready to run, but other processes have the CPUs",
        ),
        (any(candidate.working or candidate.woke for candidate in candidates), "still working"),
        (True, "alive"),
    )[0]


def _candidate_line(candidate: Candidate) -> str:
    process, candidacy = candidate.process, candidate.candidacy
    cpu = f", {candidate.cpu_ratio:.0%} of a core" if candidate.cpu_ratio is not None else ""
    inside = (
        f", in {process.syscall}{f' of {process.file}' if process.file else ''}"
        if process.syscall
        else f", wchan {process.wchan}"
        if process.wchan
        else ""
    )
    env = f"; RANK={process.rank} in its environment" if process.rank is not None else ""
    why = (
        f"; {candidacy.mark}{f', {candidacy.command}' if candidacy.command else ''}"
        if candidacy is not None
        else env
    )
    return f"pid {process.pid} on {candidate.host}: state {process.state}{cpu}{inside}{why}"


# -- Never seen


_ELSEWHERE = {
    "nodes": "but {} is {}",
    "local": "but each host runs only {} of {} ranks",
    "store": "and the store is on another host ({})",
}
"""By the word in `Awaited.elsewhere`."""


def _missing(finding: Finding, seen: Awaited, at: Context) -> Said:
    snapshot, ranks, words = at.snapshot, finding.ranks, words_of(seen.joining)
    number = f"={ranks[0]}" if len(ranks) == 1 else f" {rank_list(ranks[:64])}"
    last = f"no process with {words.number}{number} was seen on any host that reports"
    hosts = sorted({rank.host for rank in snapshot.ranks if rank.host is not None})
    there = [rank.rank for rank in snapshot.ranks if rank.hello]
    if seen.elsewhere:
        word, *numbers = seen.elsewhere
        why = _ELSEWHERE[str(word)].format(*numbers)
        last = f"only {', '.join(hosts[:8])} {verb(hosts, 'reports', 'report')} here, {why}"
    joined = f"{verb(ranks, 'has', 'have')} not joined: {words.size} is {snapshot.world_size}"
    return Said(
        f"{ranks_text(ranks)} {joined}, {wait_text(seen.joining)}, {so_far(seen.joining)}; {last}",
        (f"{ranks_text(there)} on {', '.join(hosts[:8])}", *path_lines(seen.joining.inside[:4])),
        _start_advice(finding, seen, snapshot),
    )


def _start_advice(finding: Finding, seen: Awaited, snapshot: Snapshot) -> str:
    hellos = [rank.hello for rank in snapshot.ranks if rank.hello is not None]
    size = words_of(seen.joining).size.lower()
    return that_hold(
        (
            seen.elsewhere,
            "check that the job runs on the other hosts: ddtop status"
            f" {quoted(snapshot.job)} there",
        ),
        (
            any(is_elastic(hello.environment) for hello in hellos),
            "find out why the launcher did not start it: check --nproc-per-node, --nnodes and its"
            " output",
        ),
        (
            all(hello.claim == "init" for hello in hellos),
            f"{size} is {snapshot.world_size}, but {len(hellos)} processes joined: start as many as"
            f" {size} says",
        ),
        (
            True,
            f"start it with RANK={finding.ranks[0]}, or set WORLD_SIZE={len(hellos)} on all ranks",
        ),
    )[0]


_OF = {Kind.RANK_KILLED: _killed, Kind.RANK_MISSING: _missing}


# -- Before there is a rank


def launcher(_: Finding, seen: WaitingLauncher, __: Context) -> Said:
    """For what it waits: torchrun waits for other nodes, or for the store where they meet."""
    missing = seen.nodes - (seen.nodes_there or 0)
    others = f"the other nodes of {seen.nodes}"
    nodes = f"{missing} of {seen.nodes} nodes" if seen.nodes_there else others
    why = WHY_NOT.get(seen.probe or "", seen.probe)
    waits, advice = (
        (
            f"has waited {duration(seen.waited_s)} for {nodes} at {seen.place}",
            "start it on the other nodes, with the same --nnodes and the same address; to test the"
            " connection from there",
        )
        if seen.probe is None
        else (
            f"cannot reach the store at {seen.place} ({why}){lasting(seen.waited_s, ', for')}",
            "start the node that opens the store there; check --rdzv-endpoint or --master-addr",
        )
    )
    return Said(
        f"the launcher of {seen.script} (pid {seen.pid}) {waits}; no rank yet",
        (),
        f"{advice}: nc -zv {' '.join(map(quoted, seen.place.split(':')))}",
    )


WRITERS: dict[type, Writer] = {Awaited: awaited, WaitingLauncher: launcher}
