"""What is said of ranks for which others wait: where they are instead, for how long, and what to
do."""

from __future__ import annotations

from ddtop.diagnosis.patience import may_have_raised, new_program, phase_of, polls_or_works
from ddtop.diagnosis.rules.blamed import HeldUp, NotLaunched
from ddtop.diagnosis.standstill import pauses, sleep_left_s
from ddtop.diagnosis.waiters import makes_by_hand
from ddtop.model.account import CPU, FRAMES, OTHER_WORLD, awaited_path, does
from ddtop.model.chain import waiting_end
from ddtop.model.facts import Blame, RankFacts, Snapshot, State
from ddtop.model.peer_waits import ANSWERS, RPC_CALL
from ddtop.model.wait_graph import STILL
from ddtop.policy import Policy
from ddtop.say.chain import OF_CHAIN, chain_clause, chain_lines, chain_step, threads_of
from ddtop.say.evidence import (
    NEW_GROUP_RULE,
    call_lines,
    collecting_line,
    left_advice,
    loader_line,
    place_line,
    process_line,
    stack_lines,
    whom_to_ask,
    with_timeout,
)
from ddtop.say.nccl import ras_lines
from ddtop.say.places import phase_clause, where_text
from ddtop.say.said import (
    CRITICAL,
    WARNING,
    Context,
    Finding,
    Kind,
    Said,
    Writer,
    duration,
    lasting,
    lasts_text,
    stacks,
    that_hold,
)
from ddtop.say.waiters import by_hand_line, called_at, waits_clause
from ddtop.wire.names import (
    FINALIZE,
    GROUP_MAKERS,
    MPI_STARTED,
    NAME_ONLY,
    SENDS,
)
from ddtop.words.sentences import (
    COLLECTIVE,
    P2P,
    file_line,
    framework_text,
    function_text,
    quoted,
    ranks_text,
    verb,
)

PLACES_MAX = 3
BY_STACK = "judged by the stacks of the training threads: ddtop cannot read sequence numbers of"


def held_up(finding: Finding, seen: HeldUp, at: Context) -> Said:
    """What the ranks do instead of joining the others, and who waits."""
    snapshot, policy, now = at.snapshot, at.policy, at.snapshot.time_unix_ns
    kind, severity, ranks, victims = finding.kind, finding.severity, finding.ranks, finding.victims
    blames = list(seen.blames)
    first = min(blames, key=lambda blame: blame.since_unix_ns)
    waited_s = (now - first.since_unix_ns) / 1e9
    lead = snapshot.rank(ranks[0])
    where = _places(snapshot, ranks, lasts_text(at, first.since_unix_ns))
    subject = f"{ranks_text(ranks)} {verb(ranks, 'has', 'have')} been {where}"
    told = ""
    if kind in OF_CHAIN and len(ranks) == 1:
        told = chain_clause(lead, waiting_end(snapshot, lead, first.waiters))
    if kind == Kind.INTERPRETER_FROZEN:
        subject = (
            f"{ranks_text(ranks)} {verb(ranks, 'runs', 'run')}, but C code holds the GIL: "
            f"no report{lasting(lead.agent.report_age_s or 0)}, {where_text(lead)}"
        )
    elif (became := new_program(lead)) is not None:
        subject = _replaced_text(ranks, lead, became)
    elif kind == Kind.LEFT_EARLY and may_have_raised(lead):
        subject = (
            f"{ranks_text(ranks)} {verb(ranks, 'is', 'are')} at the end of"
            f" {verb(ranks, 'its', 'their')} program, done or after an exception, and"
            f" {where_text(lead)}"
        )
    elif kind == Kind.LEFT_EARLY:
        done = lead.progress.iteration
        after = f" after iteration {done:,}" if done is not None else ""
        subject = f"{ranks_text(ranks)} {verb(ranks, 'is', 'are')} done{after} and"
        subject += f" {where_text(lead)}"
    elif severity == WARNING and pauses(lead, first, policy):
        ends = verb(ranks, "its sleep ends in", "their sleeps end within")
        left_s = max(sleep_left_s(snapshot.rank(rank)) or 0.0 for rank in ranks)
        subject += f", and {ends} {duration(left_s)}"
    elif (phase := _one_phase(snapshot, ranks)) is not None:
        subject = f"{ranks_text(ranks)} {verb(ranks, 'is', 'are')} {phase}"
    elif severity == WARNING and (helped := _helped_text(lead)) is not None:
        subject += helped
    elif (
        severity == WARNING
        and not told
        and all(polls_or_works(snapshot.rank(rank)) for rank in ranks)
    ):
        tries = verb(ranks, "it polls, or works", "they poll, or work")
        subject += f": {tries} in short steps"
    elif severity == WARNING and _only_around_it(lead):
        subject += f", while {verb(ranks, 'its', 'their')} other threads or children work"
    elif (
        severity == WARNING
        and first.condition != STILL
        and does(lead).word != OTHER_WORLD
        and _is_seen_to_work(lead, first)
    ):
        busy = "is still working" if len(ranks) == 1 else "are still working"
        # A rank that works without using its CPU may be asleep at this instant.
        asleep = lead.process.working is False and lead.reported.place is not None
        spot = (
            f"in {function_text(lead.reported.place)} ({file_line(lead.reported.place)})"
            if asleep and lead.reported.place
            else where_text(lead)
        )
        subject = f"{ranks_text(ranks)} {busy}, {spot}, {duration(waited_s)}"
    subject += told
    tail = waits_clause(snapshot, first, ranks, victims)
    if kind == Kind.LEFT_EARLY:
        tail += called_at(snapshot, first.waiters)
    lines = _evidence(snapshot, blames, policy)
    advice, rule = _next_step(finding, lead, first, at)
    return with_timeout(Said(f"{subject}; {tail}", lines, advice, rule=rule), snapshot, first)


def _replaced_text(ranks: tuple[int, ...], lead: RankFacts, became: str) -> str:
    place = lead.reported.place
    last = f" after {file_line(place)} {place.function}" if place is not None else ""
    return (
        f"{ranks_text(ranks)} {verb(ranks, 'has', 'have')} become another program, {became},"
        f" by exec{last}"
    )


def _is_seen_to_work(rank: RankFacts, blame: Blame) -> bool:
    """Whether the sentence may say that it works. After only seconds of sampling from outside, only
    its CPU use shows this."""
    by_stack = blame.peer_wait is not None and blame.peer_wait.by_stack
    return not by_stack or rank.process.working is True


def _one_phase(snapshot: Snapshot, ranks: tuple[int, ...]) -> str | None:
    """The phase that they report, if it is the same; None if they are in none."""
    phases = [phase_of(snapshot.rank(rank)) for rank in ranks]
    if len({progress.phase if progress is not None else None for progress in phases}) > 1:
        return None
    return phase_clause(snapshot.rank(ranks[0]), snapshot.time_unix_ns)


def _helped_text(rank: RankFacts) -> str | None:
    """What is said of a rank whose main thread waits for another process that works for it; None if
    it does not."""
    place, report = rank.reported.place, rank.process.report
    if not rank.process.working or place is None or place.waits_on is None:
        return None
    if place.asked is not None:
        return ""
    moving = (end for end in report.far_ends if not end.still_since_unix_ns) if report else ()
    job = next((end.where.job for end in moving), None)
    return f", while job {job}, to which it is connected, moves on" if job is not None else None


def _only_around_it(rank: RankFacts) -> bool:
    """Whether its main thread waits for other threads or children of its process, which use the
    CPU.
    """
    classified = does(rank)
    return (
        bool(rank.process.working)
        and classified.source == FRAMES
        and classified.word in ("lock", "queue", "rpc")
    )


def _places(snapshot: Snapshot, ranks: tuple[int, ...], waited: str) -> str:
    """Where they are; listed one by one if their places differ."""
    texts = {where_text(snapshot.rank(rank)) for rank in ranks}
    if len(texts) == 1:
        return f"{texts.pop()}{waited}"
    shown = "; ".join(
        f"rank {rank} {where_text(snapshot.rank(rank))}" for rank in ranks[:PLACES_MAX]
    )
    more = f"; {len(ranks) - PLACES_MAX} more" if len(ranks) > PLACES_MAX else ""
    return f"elsewhere{waited}: {shown}{more}"


def _evidence(snapshot: Snapshot, blames: list[Blame], policy: Policy) -> tuple[str, ...]:
    """The most important line first: the banner shows it under the sentence."""
    lines: list[str | None] = []
    for blame in blames[:4]:
        rank = snapshot.rank(blame.root)
        lines += [
            loader_line(rank),
            collecting_line(rank, snapshot.time_unix_ns),
            by_hand_line(rank),
            process_line(rank),
            place_line(rank),
        ]
        end = waiting_end(snapshot, rank, blame.waiters)
        lines += [*chain_lines(rank, end), *stack_lines(rank)]
        theirs = threads_of(end) if end is not None else ()
        lines += [f"a thread of rank {end.rank}: {text}" for text in theirs if end is not None]
        group = next((item for item in rank.comm.groups if item.group == blame.group), None)
        enqueued = group.enqueued - (group.p2p_offset or 0) if group else 0
        waiting = {
            wait.rank
            for wait in snapshot.waits
            if (wait.group, wait.seq) == (blame.group, blame.seq)
        }
        # The other victims wait for these ranks.
        inside = tuple(waiter for waiter in blame.waiters if waiter in waiting) or blame.waiters
        if rank.state is not State.SILENT and blame.seq is not None:
            lines.append(
                f"rank {rank.rank} has enqueued #{enqueued}, {ranks_text(inside)}"
                f" {verb(inside, 'waits', 'wait')} in #{blame.seq}"
            )
    waiter = snapshot.rank(blames[0].waiters[0])
    # From NCCL's own thread, which answers even if Python is blocked or torch's recorder is off.
    lines += ras_lines(snapshot, policy)[:3]
    if (place := waiter.reported.place) is not None:
        spot = f"rank {waiter.rank} waits at {file_line(place)} {function_text(place)}"
        lines.append(spot + framework_text(place, whole=True))
    if any(blame.peer_wait is not None and blame.peer_wait.by_stack for blame in blames):
        lines += call_lines([snapshot.rank(number) for number in blames[0].waiters])
        whose = " ranks started without DDTOP=1" if waiter.from_outside else " JAX"
        lines.append(BY_STACK + whose)
    return tuple(line for line in lines if line is not None)


def _next_step(finding: Finding, rank: RankFacts, blame: Blame, at: Context) -> tuple[str, str]:
    """The next step, and the rule that all ranks have to keep."""
    snapshot, kind, severity, policy = at.snapshot, finding.kind, finding.severity, at.policy
    shown = stacks(finding, at, f" --rank {rank.rank}")
    word = does(rank).word
    by_word = _BY_WORD.get((rank.reported.waits_on if word == "rpc" else None) or word)
    if word == "gc" and rank.process.working is False:
        # A collection computes. One that sleeps is in a finalizer or a callback of the program.
        by_word = None
    stands = severity == CRITICAL or blame.condition == STILL or _only_around_it(rank)
    stands = stands or word == OTHER_WORLD
    step = chain_step(rank, waiting_end(snapshot, rank, blame.waiters))
    waits = phase_of(rank) is not None or pauses(rank, blame, policy)
    stands = stands and not (severity == WARNING and waits)
    if (special := _special_step(snapshot, kind, rank, blame)) is not None:
        text = special
    elif by_word is not None and stands:
        of_child = step if word in ("child", "rpc") else None
        text = of_child or by_word.format(pid=rank.pid, stacks=shown, any=stacks(finding, at))
    elif stands and kind in OF_CHAIN and step is not None:
        text = step
    elif (
        stands
        and word == "socket"
        and rank.process.report is not None
        and rank.process.report.remote is not None
    ):
        text = (
            f"give that call a timeout, and find out why {rank.process.report.remote} does not"
            " answer"
        )
    elif kind == Kind.INTERPRETER_FROZEN:
        # A rank that was started without ddtop has no handler for the signal.
        by_signal = f"which line: F9, or ddtop stacks --rank {rank.rank} --signal; "
        where = "" if rank.from_outside else by_signal
        text = f"see {where}which C call: py-spy dump --native --pid {rank.pid}"
    elif (call := _one_call(rank, blame, policy)) is not None:
        text = step or (
            f"check whether the loop in {call} ends: {shown}; if it just"
            " takes long, do this work on all ranks or outside the collective"
        )
    elif not stands:
        text = step or "let it finish, or do this work on all ranks or outside the collective"
    elif rank.reported.activity == "loader":
        text = (
            "see where that dataset waits (file server, lock, worker):"
            f" {_stacks(rank)} shows all its threads"
        )
    elif (path := awaited_path(rank)) is not None:
        text = _about_path(rank, path)
    else:
        return _by_rule(rank, blame, word)
    return text, ""


def _about_path(rank: RankFacts, path: str) -> str:
    """What to do about a file for which it polls."""
    tried = rank.reported.handling
    if tried is not None and tried.type == FileExistsError.__name__:
        # It makes the file that says that it has the lock.
        return (
            f"find out which process has made {path}; if that one has ended, the file is stale:"
            f" rm {quoted(path)}"
        )
    return (
        f"find out which process holds {path}, or should have made, opened or removed it; give"
        " that wait a time limit"
    )


def _by_rule(rank: RankFacts, blame: Blame, word: str) -> tuple[str, str]:
    """Where to look, and the rule of the call in which the others are, if it is a special one or
    all that is known."""
    text, rule, place = "", _rule_of(blame), rank.reported.place
    if place is not None and (blame.condition == STILL or word not in (COLLECTIVE.word, P2P.word)):
        asks = "what it waits for" if polls_or_works(rank) else "why it is stuck"
        text = f"find out {asks} at {file_line(place)}"
        if rule.startswith(OF_ALL):
            return f"{text}{_how(rank)}", ""
    elif not blame.peer_wait:
        rule += " in the same order"
    if rule.startswith(OF_ALL):
        return text, rule
    return "; ".join(filter(None, (text, rule))), ""


def _special_step(snapshot: Snapshot, kind: Kind, rank: RankFacts, blame: Blame) -> str | None:
    """The next step for a rank that does not come back, or waits for processes that nobody knows;
    None for others."""
    if new_program(rank) is not None:
        return "start that program as a child, or call exec after the last collective"
    if makes_by_hand(rank):
        return (
            "it waits for all members of the group that it makes there: make such groups in the"
            " same order on all of them, and check that none has ended: ddtop jobs, ddtop diagnose"
        )
    if kind != Kind.LEFT_EARLY:
        return None
    text = left_advice(rank, [snapshot.rank(number) for number in blame.waiters])
    if may_have_raised(rank):
        text = f"look for an exception in the output of rank {rank.rank}; otherwise {text}"
    return text


def _how(rank: RankFacts) -> str:
    """Where to look."""
    ask = whom_to_ask(rank)
    if ask is not None:
        return f": {_stacks(rank)}; give that wait a timeout, and see {ask}"
    return f": {_stacks(rank)} shows all its threads; give what it waits for a time limit"


def _stacks(rank: RankFacts) -> str:
    """The command that shows where its threads are."""
    if rank.from_outside:
        return f"ddtop stacks --pid {rank.pid}"
    return f"ddtop stacks --rank {rank.rank}"


def _one_call(rank: RankFacts, blame: Blame, policy: Policy) -> str | None:
    """The function in one call of which it has computed since the others began to wait."""
    place = rank.reported.place
    if place is None or place.since_unix_ns is None or does(rank).source != CPU:
        return None
    at_first = place.since_unix_ns - blame.since_unix_ns <= policy.still_limit_s * 1e9
    return f"{function_text(place)} ({file_line(place)})" if at_first else None


def _rule_of(blame: Blame) -> str:
    single = blame.peer_wait
    if single is None:
        return _OF_STARTED if blame.op in MPI_STARTED else EVERY_RANK
    return that_hold(
        (single.call == FINALIZE, "MPI_Finalize waits for all ranks"),
        (single.call in GROUP_MAKERS, NEW_GROUP_RULE),
        (single.by_stack or single.call in NAME_ONLY, f"{OF_ALL} calls"),
        (single.call == "monitored_barrier", "all ranks must reach the barrier"),
        (single.call == RPC_CALL, "the call must return, or give up after a time"),
        (
            single.call in ANSWERS.values(),
            "it must answer, or the others must give up after a time",
        ),
        (single.call in SENDS, "each send needs a recv on that rank"),
        (True, "each recv needs a send from that rank"),
    )[0]


_OF_STARTED = (
    "a nonblocking collective progresses only inside MPI calls: call its Wait sooner, or call Test"
    " in between"
)
OF_ALL = "every rank must make the same"
EVERY_RANK = f"{OF_ALL} collective calls"
_RAY = (
    "see what that task or actor does, waits for or lacks (CPUs, GPUs): ray list tasks, ray list"
    " actors, ray status; give the call a timeout"
)
_BY_WORD = {
    "gc": (
        "call gc.freeze() and gc.disable() after start-up, and gc.collect() at the same step on"
        " all ranks"
    ),
    "gil": "see which thread holds the GIL: py-spy dump --native --pid {pid}",
    "stdin": "nobody can answer there: remove the prompt from the program",
    "debugger": "continue or quit in that debugger",
    OTHER_WORLD: "see where the processes of that world are: ddtop jobs, on their host",
    "rpc": "check the process that it calls: {any}",
    "ray.get": _RAY,
    "ray.wait": _RAY,
    "child": "find out what its child processes wait for: {stacks}",
}
"""Advice for activities that need special advice, by the word of the class; of RPCs by
`Place.waits_on`."""


def not_launched(finding: Finding, seen: NotLaunched, at: Context) -> Said:
    """Which ranks have not enqueued the collective that others wait in, by NCCL's own report."""
    snapshot, policy = at.snapshot, at.policy
    ranks, waiters, first = finding.ranks, finding.victims, snapshot.rank(finding.ranks[0])
    if seen.stands_s is not None:
        why = f"no rank has enqueued another{lasting(seen.stands_s)}"
    else:
        held_s = min(snapshot.rank(rank).agent.report_age_s or 0.0 for rank in waiters)
        why = f"C code has held the GIL there{lasting(held_s)}"
    lines = [
        process_line(first),
        place_line(first) if not seen.frozen else None,
        *ras_lines(snapshot, policy)[:3],
    ]
    how = "py-spy dump --native" if seen.frozen else "ddtop stacks"
    return Said(
        f"{ranks_text(ranks)} {verb(ranks, 'has', 'have')} not enqueued the {finding.op} that"
        f" {ranks_text(waiters)} {verb(waiters, 'waits', 'wait')} in, according to NCCL; {why}",
        tuple(line for line in lines if line is not None),
        f"see where {ranks_text(ranks[:1])} is stuck: {how} --pid {first.pid}",
    )


WRITERS: dict[type, Writer] = {HeldUp: held_up, NotLaunched: not_launched}
