"""What is said of ranks and helpers that have ended, and of the errors of others after that."""

from __future__ import annotations

from collections.abc import Sequence

from ddtop.diagnosis.rules.comm_error import Failed
from ddtop.diagnosis.rules.departures import First, Unordered, fatal_save
from ddtop.diagnosis.shortage import is_full
from ddtop.model.ending import (
    SENT_SIGNALS,
    fatal_exception,
    has_failed,
    lost_launcher,
    went_unix_ns,
)
from ddtop.model.errors import Says, address_in, reason_in, without_rank
from ddtop.model.facts import RankFacts
from ddtop.model.wait_graph import comparable_seq
from ddtop.say.evidence import end_line, left_advice
from ddtop.say.nccl import ras_lines
from ddtop.say.places import where_text
from ddtop.say.said import (
    Context,
    Finding,
    Kind,
    Said,
    Writer,
    group_text,
    lasting,
    size_text,
    spot_text,
    that_hold,
)
from ddtop.say.waiters import called_at, waits_clause
from ddtop.wire.mpi import MpiCall
from ddtop.wire.records import Exit, HelperEnd, LastException, WorkerEnd
from ddtop.words.sentences import (
    by_value,
    clipped,
    collective_text,
    exit_text,
    file_line,
    function_text,
    quoted,
    ranks_text,
    verb,
)

_TEXT_CHARACTERS = 100
_OF_SIGNALS = {
    9: (
        "find out who sent SIGKILL: the scheduler, a person, or the out-of-memory killer (dmesg |"
        " grep -i kill)"
    ),
    6: (
        "a C++ abort: read the reason on the rank's stderr; gloo aborts when a peer sends a"
        " different size or dtype: check that all ranks make the same calls with the same sizes"
        " (look for a branch that only some ranks take), and that only one thread uses a group"
    ),
    7: "a bus error usually means that /dev/shm is full: df -h /dev/shm",
    11: "native code crashed: run the rank with PYTHONFAULTHANDLER=1",
    24: "its limit of CPU seconds is used up: raise it (ulimit -t, or the batch system's h_cpu)",
}
_CRASHES = (4, 6, 7, 11)
"""SIGILL, SIGABRT, SIGBUS, SIGSEGV: what the kernel or the C library sends to a process that made a
mistake."""
_PASSED_ON = 128
"""A launcher whose process was ended by a signal exits with this number plus the signal's."""
_CURES = {
    # With the space: torch raises an OutOfMemoryError about a GPU.
    " MemoryError": (
        "rank {} asked for more memory than it may have: allocate less there, or in smaller parts;"
        " free -h and ulimit -v show what there is"
    ),
    "No space left on device": (
        "rank {} found its disk full: free some space or write elsewhere: df -h, df -i; the last"
        " file is incomplete"
    ),
    "File too large": (
        "rank {} wrote a larger file than it may: raise the limit (ulimit -f, or the batch"
        " system's), or write smaller files"
    ),
    "Too many open files": (
        "rank {} has more files open than it may: raise the limit (ulimit -n), or close them;"
        " DataLoader workers keep one for each shared tensor"
    ),
    # Multiprocessing says this where a child starts children while it imports the script.
    "before the current process has finished its bootstrapping phase": (
        "a process that it started with spawn or forkserver ran the script again: put everything"
        ' except definitions under `if __name__ == "__main__":`'
    ),
    "Expected to have finished reduction in the prior iteration": (
        "some parameters had no part in the loss of rank {}: let each branch use all of them, or"
        " give DDP find_unused_parameters=True"
    ),
    "Expected to mark a variable ready only once": (
        "a parameter of rank {} got two gradients in one backward: give DDP static_graph=True, or"
        " use that part of the model once (checkpointing runs it again)"
    ),
    "appears not to match sizes of the same param": (
        "the model of rank {} differs from that of the other ranks: build it from the same settings"
        " (vocabulary, classes, layers) everywhere, not from what each rank reads"
    ),
    "Default process group has not been initialized": (
        "call init_process_group on rank {} before that call, and do not destroy the group earlier"
    ),
    "Error(s) in loading state_dict": (
        "the checkpoint that rank {} loads is of another model: compare the names of its"
        " parameters; those of DDP begin with `module.`"
    ),
    "stack expects each tensor to be equal size": (
        "the samples of one batch of rank {} differ in size: pad them in collate_fn, or sort them"
        " by length"
    ),
    "Cannot re-initialize CUDA in forked subprocess": (
        "start the processes of rank {} by spawn or forkserver, or before its first use of the GPU"
    ),
    "daemonic processes are not allowed to have children": (
        "a worker of rank {} starts processes: start them in the rank, or use threads"
    ),
    "received 0 items of ancdata": (
        "rank {} has more files open than it may: raise the limit (ulimit -n), or call"
        " torch.multiprocessing.set_sharing_strategy('file_system')"
    ),
}
"""What to do about an exception, by a part of ` TYPE: TEXT`."""


# -- The rank that went first


def first(finding: Finding, seen: First, at: Context) -> Said:
    """How it ended, and what that has meant for the others."""
    if finding.kind == Kind.LEFT_EARLY:
        return _left(finding, seen, at)
    rank, ended = seen.first, seen.first.process.exit
    killed = finding.kind == Kind.RANK_KILLED
    said = _killed(rank, ended) if killed and ended else _crashed(finding, rank, at)
    after = [one for one in finding.victims if at.snapshot.rank(one).gone]
    then = f"{ranks_text(after)} ended after it" if after else ""
    if seen.wait is not None:
        then = waits_clause(at.snapshot, seen.wait, finding.ranks, seen.waiting)
    orphans = ended.orphans if ended is not None and at.snapshot.ended is None else ()
    sockets = (ended.orphan_sockets or 0) if ended is not None else 0
    outlived = _outlived_text(rank, orphans, sockets)
    pids = " ".join(map(str, orphans[:8]))
    held = f"{outlived} (pids {pids}): as long as they live, its peers see no disconnect"
    return Said(
        said.summary,
        (*said.evidence, *_evidence(rank, at), *that_hold((orphans and sockets, held))),
        f"{said.advice}; end these processes: kill {pids}" if orphans else said.advice,
        "; ".join(filter(None, (said.others, then, outlived))),
    )


def _crashed(finding: Finding, rank: RankFacts, at: Context) -> Said:
    error = rank.reported.exception if fatal_exception(rank) else None
    said = _raised(finding.ranks, rank, error, at) if error else _exited(finding.ranks, rank)
    if (save := fatal_save(rank, at.policy)) is None:
        return said
    full = is_full(save.free_bytes, save.total_bytes, at.policy)
    left = f"{size_text(save.free_bytes)} of {size_text(save.total_bytes)} left"
    failed = f"{save.call} to {clipped(save.path, _TEXT_CHARACTERS)} had failed"
    failed += f": its disk is full ({left})" if full else ""
    return Said(
        said.summary,
        (f"{save.call} to {save.path}: {save.error}",),
        "free some space or save elsewhere: df -h; the file is incomplete"
        if full
        else f"find out why {quoted(save.path)} cannot be written: {quoted(save.error)}",
        "; ".join(filter(None, (said.others, failed))),
    )


def _raised(ranks: Sequence[int], rank: RankFacts, error: LastException, at: Context) -> Said:
    who, several = ranks_text(ranks), len(ranks) > 1
    every = several and len(ranks) == len(at.snapshot.ranks)
    whose = f"the process of rank {rank.rank}" if several else "its process"
    alive = f"{whose} is still alive" if rank.process.exit is None else ""
    others = [one for one in at.snapshot.ranks if one.rank not in ranks]
    failed = any(one.gone or one.reported.exception is not None for one in others)
    text = f" {error.type}: {error.text}"
    cures = (cure.format(rank.rank) for part, cure in _CURES.items() if part in text)
    advice = (
        f"fix that exception: {'every rank' if every else who} raised it, so the cause is not the"
        " data or the host of a single rank"
        if several
        else f"fix that exception on rank {rank.rank}"
        + ("; the other ranks' errors came later" if failed else "")
    )
    worker_gone = Says.WORKER_GONE.within(error.text)
    return Said(
        f"{'all ranks' if every else who} {_raised_text(error)}",
        (),
        _worker_advice(error.worker) if worker_gone else next(cures, advice),
        alive,
    )


def _exited(ranks: Sequence[int], rank: RankFacts) -> Said:
    code = rank.process.exit.code if rank.process.exit is not None else None
    passed_on, lost = (code or 0) - _PASSED_ON, lost_launcher(rank)
    how = "MPI's Abort, sys.exit" if rank.comm.mpi is not None else "sys.exit"
    at = rank.reported.left_at
    where = f": it left at {file_line(at)} in {function_text(at)}" if at is not None else ""
    return Said(
        f"{ranks_text(ranks) if lost else f'rank {rank.rank}'} ended with exit code {code}"
        + (": their launcher is gone" if lost else where),
        (),
        that_hold(
            (
                passed_on in _OF_SIGNALS,
                f"shells and containers end with {code} after signal {passed_on}:"
                f" {_OF_SIGNALS.get(passed_on)}",
            ),
            (lost, "find out who killed mpirun, or its daemon on that host: dmesg | grep -i kill"),
            (
                at is not None,
                f"look why rank {rank.rank} left there (its output may say so), and let all ranks"
                " decide that alike: all_reduce the flag that ends the loop",
            ),
            (
                True,
                f"read the output of rank {rank.rank}: it ended itself with {how} or os._exit,"
                " perhaps after it caught an exception",
            ),
        )[0],
    )


def _killed(rank: RankFacts, ended: Exit) -> Said:
    # The agent's thread reads other threads' frames in less than a thousandth of the time, and no
    # other Python code runs in that moment.
    by_ddtop = ended.walking and ended.signal in _CRASHES
    name = f"rank {rank.rank} (pid {ended.pid})"
    how, iteration = exit_text(ended.code, ended.signal, ended.oom), rank.progress.iteration
    died = (
        f"{name} is gone, and it is not known how it ended"
        if ended.signal is None
        else f"ddtop's own thread crashed {name}: {how}"
        if by_ddtop
        else f"{name} was killed by {how}"
    )
    return Said(
        died + (f" in iteration {iteration:,}" if iteration is not None else ""),
        tuple(
            that_hold(
                (ended.oom_line is not None, f"kernel log: {clipped(ended.oom_line or '', 200)}"),
                (by_ddtop, f"{name}: it died while ddtop was reading the stacks of its threads"),
            )
        ),
        that_hold(
            (
                ended.oom,
                "the host or cgroup ran out of memory: use fewer workers or smaller batches, or"
                " raise the limit",
            ),
            (
                by_ddtop,
                "set DDTOP_FRAMES=off, start the job again, and report this to the authors of"
                " ddtop",
            ),
            (ended.signal in _OF_SIGNALS, _OF_SIGNALS.get(ended.signal or 0, "")),
            (True, "find out who sent the signal, then start the job again"),
        )[0],
    )


def _raised_text(error: LastException) -> str:
    own = clipped(without_rank(error.text), _TEXT_CHARACTERS)
    text = f": {own}" if own else ""
    return f"raised {error.type}{text}{spot_text(error.place, ' at ', '')}"


def _worker_advice(worker: WorkerEnd | None) -> str:
    """What to do about the DataLoader worker whose end has ended its rank."""
    if worker is None or worker.code < 0:
        return (
            "its DataLoader worker died first: dmesg | grep -i kill (out of memory: use fewer"
            " workers or smaller batches); after a bus error: df -h /dev/shm"
        )
    name = f"its DataLoader worker (pid {worker.pid})"
    if worker.reruns:
        return (
            f"{name} ran the script again, as workers started by {quoted(worker.method)} do, and"
            ' failed there: put everything except definitions under `if __name__ == "__main__":`'
        )
    return (
        f"{name} ended itself with exit code {worker.code}: its own error is further up in the"
        " output; num_workers=0 raises it in the rank"
    )


def _outlived_text(rank: RankFacts, orphans: Sequence[int], sockets: int) -> str:
    """`2 DataLoader workers outlived it and hold its 5 sockets`; empty if none has."""
    workers = rank.loader.report is not None and rank.loader.report.workers >= len(orphans)
    many = ("DataLoader worker", "DataLoader workers") if workers else ("child", "children")
    holds = f" and {verb(orphans, 'holds', 'hold')} its {sockets}"
    held = f"{holds} {verb(sockets, 'socket', 'sockets')}" if sockets else ""
    return f"{len(orphans)} {verb(orphans, *many)} outlived it{held}" if orphans else ""


def _evidence(first: RankFacts, at: Context) -> list[str]:
    """Its end, its last place and call, and the ends after it."""
    iteration, place = first.progress.iteration, first.reported.own_place
    then = f", iteration {iteration:,}" if iteration is not None else ""
    others = [rank for rank in at.snapshot.ranks if rank.rank != first.rank]
    later = sorted((rank for rank in others if has_failed(rank) or rank.gone), key=went_unix_ns)
    return [
        end_line(first, at.snapshot),
        *filter(None, [spot_text(place, "last seen at ", then)]),
        *map(_call_text, first.comm.mpi.calls[:1] if first.comm.mpi else ()),
        *(
            f"{(went_unix_ns(rank) - went_unix_ns(first)) / 1e9:+.2f} s:"
            f" {end_line(rank, at.snapshot)}{_elsewhere(rank, first)}"
            for rank in later[:6]
        ),
    ]


def _elsewhere(rank: RankFacts, first: RankFacts) -> str:
    """Where it stood, if that is another place than that of the first one, which has crashed: a
    peer with another call may be why."""
    place, theirs = rank.reported.own_place, first.reported.own_place
    same = place and theirs and (place.file, place.line) == (theirs.file, theirs.line)
    crashed = first.process.exit is not None and first.process.exit.signal in _CRASHES
    return spot_text(place, ", last seen at ", "") if crashed and not same else ""


def _call_text(call: MpiCall) -> str:
    number = f" #{call.seq}" if call.seq is not None else ""
    peer = f", {'root' if number else 'rank'} {call.peer}" if call.peer is not None else ""
    return f"its last MPI call: {call.name}{number}{peer}"


def _left(finding: Finding, seen: First, at: Context) -> Said:
    """What it has left, and who still needed it."""
    snapshot, iteration = at.snapshot, seen.first.progress.iteration
    ranks, needing = finding.ranks, list(map(snapshot.rank, finding.victims))
    them = verb(ranks, "it", "them")
    theirs = [own for rank in needing if (own := rank.progress.iteration) is not None]
    at_most = max(theirs, default=iteration)
    others = f", the others are at {at_most:,}" if at_most != iteration else ""
    stopped = f": {verb(ranks, 'it', 'they')} stopped after iteration {iteration or 0:,}{others}"
    where = called_at(snapshot, seen.waiting if seen.wait is not None else finding.victims)
    if seen.wait is not None:
        then = f"; {waits_clause(snapshot, seen.wait, ranks, seen.waiting)}{where}"
    else:
        call = _last_call(needing[0], seen.first, at)
        then = f"; {ranks_text(finding.victims[:1])} needed {them}{call}{where}" if where else ""
    shown = list(map(snapshot.rank, (*ranks[:4], *finding.victims[:4])))
    return Said(
        f"{ranks_text(ranks)} finished and ended with exit code 0 while"
        f" {ranks_text(finding.victims)} still needed {them}"
        f"{stopped if iteration is not None else ''}{then}",
        _ends(shown, at),
        f"{left_advice(seen.first, needing)}; otherwise put a barrier before the exit",
    )


def _last_call(rank: RankFacts, gone: RankFacts, at: Context) -> str:
    """` in all_gather #121 of default_pg`: what a rank has called last and the other has not."""
    known = {group.group: comparable_seq(group) for group in gone.comm.groups}
    calls = (
        f" in {collective_text(group.last_op, seq, group_text(at, group.group))}"
        for group in rank.comm.groups
        if group.last_op is not None and (seq := comparable_seq(group)) > known.get(group.group, 0)
    )
    return next(calls, "")


def gone(finding: Finding, seen: Unordered, at: Context) -> Said:
    """Who was cancelled, or has gone and may be the cause."""
    ranks, several = ranks_text([rank.rank for rank in seen.ranks]), len(seen.ranks) > 1
    evidence = _ends(seen.ranks[:8], at)
    if finding.kind == Kind.CANCELLED:
        rank = min(seen.ranks, key=went_unix_ns)
        number = rank.process.exit.signal if rank.process.exit else None
        how = "KeyboardInterrupt" if rank.reported.exception else exit_text(None, number)
        handler = f"; to save or go on at {how}, the program needs a handler (signal.signal)"
        return Said(
            f"the job was cancelled: {ranks} ended{' together' if several else ''} ({how})",
            evidence,
            "nothing to fix if you, the scheduler or a time limit ended it"
            + (handler if number in SENT_SIGNALS else ""),
        )
    exits = ((rank.rank, rank.process.exit) for rank in seen.ranks)
    ends = {rank: exit_text(ended.code, ended.signal) for rank, ended in exits if ended}
    parts = "; ".join(f"{ranks_text(numbers)}: {text}" for text, numbers in by_value(ends).items())
    why = (
        "from outside it is not known which of them caused the others to end"
        if several
        else "it may have failed because of another rank: its exception is not known from outside"
    )
    return Said(
        f"{ranks} {verb(ends, 'is', 'are')} gone ({parts}); {why}",
        evidence,
        "read what these ranks printed: the oldest error is the cause; a connection error only"
        " means that another rank ended",
    )


def _ends(ranks: Sequence[RankFacts], at: Context) -> tuple[str, ...]:
    return tuple(end_line(rank, at.snapshot) for rank in ranks)


def helper(finding: Finding, seen: HelperEnd, at: Context) -> Said:
    """How a process failed that is not a rank, and what became of the ranks."""
    ranks, title = finding.victims, (seen.command or "").partition(" ")[0]
    name = "the program that started the ranks" if seen.launcher else "a helper process"
    # Systems give their processes a title: VLLM::EngineCore.
    name += f" (pid {seen.pid}{f', {title}' if '::' in title else ''})"
    if seen.exception is not None:
        how, advice = _raised_text(seen.exception), "fix that exception"
        advice += ": mp.spawn ends all its processes when one of them fails" if ranks else ""
    else:
        how = "was killed by" if seen.signal is not None else "ended with"
        how += f" {exit_text(seen.code, seen.signal)}"
        advice = f"read the output of pid {seen.pid}; the ranks did not fail on their own"
        advice = _OF_SIGNALS.get(seen.signal or 0, advice)
    end = that_hold(
        (ranks, f"{ranks_text(ranks)} {verb(ranks, 'was', 'were')} ended because of it"),
        # Nothing is known of a parent that a signal ended long after its ranks.
        (seen.signal is not None, "all ranks ended then"),
        (True, "all ranks had finished by then"),
    )[0]
    lines = [f"pid {seen.pid}: {seen.command}"] if seen.command else []
    ended = list(map(at.snapshot.rank, ranks[:6]))
    return Said(f"{name} {how}; {end}", (*lines, *_ends(ended, at)), advice)


# -- The backend's errors on others


_WHY = {
    "named": ("did not join{at}", "did not join{at}"),
    "behind": ("had not joined it{at}", "had not joined it{at}"),
    "left": ("has left its process group", "have left their process group"),
    "dead": (
        "is dead or unresponsive according to NCCL",
        "are dead or unresponsive according to NCCL",
    ),
    "silent": ("has not reported{age}", "have not reported{age}"),
}
"""By `Failed.why`."""


def failed(finding: Finding, seen: Failed, at: Context) -> Said:
    """Whose backend reports what, and which rank is the reason."""
    ranks, text = list(map(at.snapshot.rank, finding.ranks)), seen.text
    how = "timed out" if Says.TIMEOUT.within(text) else "failed"
    what = "monitored_barrier" if "monitoredbarrier" in text.lower() else "the process group"
    if finding.group is not None:
        what = collective_text(finding.op, finding.seq, group_text(at, finding.group))
    error = clipped(("its backend reports " if seen.by_backend else "") + reason_in(text), 120)
    because = f"{error}; no rank has crashed or been killed or stopped: check the network, not the"
    because += " rank that reports the error"
    if ranks:
        age = lasting(max(rank.agent.report_age_s or 0.0 for rank in ranks))
        why = verb(ranks, *_WHY[seen.why]).format(at=_at_text(ranks), age=age)
        because = f"{ranks_text(finding.ranks)} {why}"
    reporting, address = list(map(at.snapshot.rank, finding.victims)), address_in(text)
    lines = [*_ends([one for one in reporting if one.reported.exception is not None], at)]
    lines += [f"the peer's address: {address}"] if address is not None else []
    own = [f"rank {seen.first.rank}: {error}"] if seen.first.reported.exception is None else []
    return Said(
        f"{what} {how} on {ranks_text(finding.victims)}: {because}",
        (
            *own,
            *lines[:8],
            *ras_lines(at.snapshot, at.policy)[:3],
        ),
        that_hold(
            (
                any(rank.reported.phase == "leaving" for rank in ranks),
                "leave the group together: dist.barrier() before destroy_process_group() or the end"
                " of the program",
            ),
            (
                ranks and how == "timed out",
                f"find out why {ranks_text(finding.ranks)} did not join in time; if it had work to"
                " do: init_process_group(..., timeout=timedelta(hours=2))",
            ),
            (
                ranks,
                f"read the output of {ranks_text(finding.ranks)}, and check that its host is up",
            ),
            (
                True,
                "check the links between the hosts: ip -s link; dmesg on both; check for firewalls"
                " that drop idle connections",
            ),
        )[0],
    )


def _at_text(ranks: list[RankFacts]) -> str:
    """In brackets: where the first of them is, or was."""
    rank = ranks[0]
    place = rank.reported.own_place if rank.gone else rank.reported.place
    if place is None:
        return ""
    last = f"last seen in {place.function}, {file_line(place)}"
    spot = last if rank.gone else where_text(rank)
    return f" (rank {rank.rank} {spot})" if len(ranks) > 1 else f" ({spot})"


WRITERS: dict[type, Writer] = {Failed: failed, First: first, Unordered: gone, HelperEnd: helper}
