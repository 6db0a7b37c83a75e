"""Lines of evidence that several findings show: a rank's process, its place, its stacks, its
DataLoader; and the next steps that they share.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ddtop.diagnosis.finding import Said
from ddtop.diagnosis.limits import Growing
from ddtop.diagnosis.shortage import is_full, timeout_s
from ddtop.model.account import CPU, does, fresh_stacks, other_threads, stack_line
from ddtop.model.ending import fatal_exception, went_unix_ns
from ddtop.model.errors import without_source
from ddtop.model.facts import Blame, PeerWait, RankFacts, Snapshot, State
from ddtop.model.kernel_wait import sleeps
from ddtop.model.peer_waits import takes_any
from ddtop.policy import Policy
from ddtop.say.said import duration, size_text, that_hold
from ddtop.wire.names import RECEIVES, RESULTS, SENDS
from ddtop.wire.records import Place
from ddtop.words.sentences import (
    clipped,
    coordinates_text,
    exit_text,
    file_line,
    framework_text,
    function_text,
    rpc_text,
    stage_text,
    thread_text,
)

_ASKS = {
    "lock": "which thread holds that lock or should notify it, and whether an exception ended it",
    "future": "who should set that future, and whether an exception ended it",
    RESULTS: "which worker has that task, and whether an exception ended it",
    "queue": "who should fill that queue, and whether an exception ended it",
    "pipe": "who should write or read its other end, and whether it still does",
    "socket": "which server or process should answer, and whether it does",
    "asyncio": "which of its tasks waits, and who should wake it",
}
"""By `Place.waits_on` or the word of the class."""


def whom_to_ask(rank: RankFacts) -> str | None:
    """What to find out about its wait: `who should fill that queue, and whether an exception ended
    it`; None for other waits."""
    word = does(rank).word
    ask = _ASKS.get(rank.reported.waits_on or "") or _ASKS.get(word)
    loader, process = rank.loader.report, rank.process.report
    workers = (loader.workers_alive or 0) if loader is not None else 0
    if word == "pipe" and process is not None and (process.children or 0) > workers:
        ask = f"{ask}, or what its child processes do"
    return ask


REASON_CHARACTERS, TROUBLE_CHARACTERS = 80, 200


_HOW = {"agent": "by its agent", "signal": "by signal", "py-spy": "by py-spy"}


def process_line(rank: RankFacts) -> str | None:
    """`rank 2 (pid 4802): state D, 0% of a core with its 2 children, wchan nfs_wait_bit_killable,
    in write of /ckpt/7.pt`. The CPU time of the living children counts as its own.
    """
    process = rank.process.report
    if process is None:
        return None
    seen, ratio, doing = rank.process, rank.process.cpu_ratio, does(rank)
    of = f" of {process.file}" if process.file else ""
    number = process.children or 0
    children = "its child" if number == 1 else f"its {number} children"
    parts = that_hold(
        (True, f"rank {rank.rank} (pid {process.pid}): state {process.state}"),
        (process.frozen, ", its cgroup is frozen"),
        (True, f", {ratio:.0%} of a core" if ratio is not None else ", CPU unknown"),
        (number, f" with {children}"),
        (seen.lacks_cpu, " (ready to run, but other processes have the CPUs)"),
        (seen.spinning, " (spins while it waits in MPI)"),
        (process.wchan, f", wchan {process.wchan}"),
        (process.syscall and sleeps(process), f", in {process.syscall}{of}"),
        (doing.source == CPU, f", {doing.text}"),
        (True, _memory_text(rank)),
    )
    return "".join(parts)


def _memory_text(rank: RankFacts) -> str:
    """`, 3.1 GiB of memory and 120 MiB more each second, at its limit in 40 s`; empty if its memory
    does not grow fast."""
    process, pressure = rank.process.report, rank.process.pressure
    grows = pressure.memory_per_s or 0.0 if pressure is not None else 0.0
    if process is None or grows < rank.policy.of(Growing).memory_bytes_per_s:
        return ""
    text = (
        f", {size_text(process.rss_bytes)} of memory and {size_text(int(grows))} more each second"
    )
    load = process.load
    if load is None or load.memory_limit_bytes is None or load.memory_used_bytes is None:
        return text
    left_s = max(load.memory_limit_bytes - load.memory_used_bytes, 0) / grows
    return f"{text}, at the limit of its cgroup in {duration(left_s)}"


def call_lines(ranks: Sequence[RankFacts], lines_max: int = 4) -> list[str]:
    """`rank 0's call: recv(src=2, tag=0)`: what `--locals` has read of ranks in a call for others.

    Equal calls once.
    """
    calls: dict[str, int] = {}
    for rank in ranks:
        if rank.comm.outside is not None and rank.comm.outside.arguments:
            calls.setdefault(rank.comm.outside.arguments, rank.rank)
    return [f"rank {rank}'s call: {text}" for text, rank in list(calls.items())[:lines_max]]


def place_line(rank: RankFacts) -> str | None:
    """`rank 2 is at /home/ada/train.py:53 take › acquire`: what its agent saw last.

    If the agent is silent, this place is old; a stack that is taken from outside is not.
    """
    place = rank.reported.place
    if place is None:
        return None
    below = f" › {place.callee}" if place.callee else ""
    where = (
        f"{place.file}:{place.line} {function_text(place)}{below}"
        f"{framework_text(place, whole=True)}"
    )
    if rank.state is not State.SILENT:
        return f"rank {rank.rank} is at {where}"
    if fresh_stacks(rank) is not None:
        return None
    return f"at its last report, rank {rank.rank} was at {where}"


def parallel_line(snapshot: Snapshot, rank: RankFacts) -> str | None:
    """`rank 2 is pp 1, tp 0; pipeline stage 1 (0-1), forward of microbatch 3 (0-7)`."""
    role = rank.hello.role if rank.hello is not None else None
    rpc = rpc_text(rank.comm.rpc) if rank.comm.rpc is not None else None
    place, stages = coordinates_text(snapshot.place_of(rank)), rank.comm.pipeline[:2]
    text = "; ".join(filter(None, (place, *map(stage_text, stages), role, rpc)))
    return f"rank {rank.rank} is {text}" if text else None


def collecting_line(rank: RankFacts, now_unix_ns: int) -> str | None:
    """How long a garbage collection has been going on."""
    since = rank.process.report.gc_since_unix_ns if rank.process.report is not None else None
    if since is None:
        return None
    return (
        f"rank {rank.rank}: its garbage collection has been going on for"
        f" {duration((now_unix_ns - since) / 1e9)}"
    )


_FOR_THREADS = ("gil", "lock", "queue")
"""Words of `classify` for waits that another thread of the rank may have to end."""


def stack_lines(rank: RankFacts) -> list[str]:
    """Frames of the program in the rank and in the DataLoader worker that must deliver its batch.

    Empty without a current dump.
    """
    stacks = fresh_stacks(rank)
    if stacks is None:
        return []
    lines = []
    text = stack_line(stacks)
    # A single frame says no more than the place.
    if text is not None and (" ‹ " in text or rank.state is State.SILENT):
        lines.append(f"rank {rank.rank}'s stack ({_HOW.get(stacks.method, stacks.method)}): {text}")
    if does(rank).word in _FOR_THREADS:
        lines += [f"another thread of rank {rank.rank}: {line}" for line in other_threads(stacks)]
    owing = rank.loader.report.owing_pid if rank.loader.report is not None else None
    worker = next(
        (answer for answer in rank.dump.worker_stacks if answer.pid == owing and answer.method),
        None,
    )
    text = stack_line(worker) if worker is not None else None
    if text is not None:
        lines.append(f"worker {owing}'s stack: {text}")
    return lines


def loader_line(rank: RankFacts) -> str | None:
    """How many batches its DataLoader has ready, and which worker must deliver the next.

    None unless the rank waits for a batch.
    """
    loader = rank.loader.report
    if loader is None or (
        loader.waiting_since_unix_ns is None and not (loader.closing and loader.owing_pid)
    ):
        return None
    if not loader.workers:
        return "its DataLoader has no workers: the dataset runs in the rank itself"
    if loader.closing:
        return (
            f"its DataLoader is ending its workers: pid {loader.owing_pid} is still alive, state"
            f" {loader.owing_state or 'gone'}"
        )
    # From outside nobody counts its batches.
    ready = f"{loader.depth}/{loader.capacity} batches ready, " if loader.depth is not None else ""
    text = f"its DataLoader: {ready}{loader.workers_alive}/{loader.workers} workers alive"
    if loader.owing_pid is not None:
        text += (
            f"; worker pid {loader.owing_pid} must deliver the next batch: state"
            f" {loader.owing_state or 'gone'}"
        )
    return text


def end_line(rank: RankFacts, snapshot: Snapshot) -> str:
    """`rank 2 (pid 4802): exit code 1, RuntimeError: Connection closed by peer, 12 s ago`."""
    text = f"rank {rank.rank}"
    ended, exception = rank.process.exit, rank.reported.exception
    if ended is not None:
        text += f" (pid {ended.pid}): {exit_text(ended.code, ended.signal, ended.oom)}"
    elif rank.pid is not None:
        text += f" (pid {rank.pid}): still alive"
    if exception is not None:
        reason = clipped(without_source(exception.text), REASON_CHARACTERS)
        text += f", {exception.type}: {reason}"
    ago = (snapshot.time_unix_ns - went_unix_ns(rank)) / 1e9
    return f"{text}, {duration(ago)} ago" if ago > 1 else text


SAME_CALLS = (
    "make all ranks call the same collectives in the same order; look for a branch that only some"
    " ranks take"
)


NEW_GROUP_RULE = (
    "all ranks must call new_group in the same order, even ranks that are not in the group"
)


LOCAL_GROUP_RULE = (
    "with use_local_synchronization, ranks must make the groups that they share in the same order,"
    " and be in equally many groups before: torch puts that number into the name"
)


ONE_GPU_EACH = (
    'give each its own: torch.cuda.set_device(int(os.environ["LOCAL_RANK"])), and no more ranks'
    " per host than it has GPUs"
)


def left_advice(rank: RankFacts, waiters: Collection[RankFacts]) -> str:
    """The advice if one rank is done while others still need it.

    Uneven inputs only if it has made fewer iterations or taken fewer batches than one that waits,
    or that one averages gradients.
    """
    if rank.progress.iteration is None or any(_is_ahead(facts, rank) for facts in waiters):
        return uneven_advice(rank)
    return (
        "make that call on every rank or on none, and leave the loop on all at the same step: even"
        " if one rank saves, all ranks must take part if a sharded model is gathered"
    )


def _is_ahead(facts: RankFacts, rank: RankFacts) -> bool:
    loader, theirs = rank.loader.report, facts.loader.report
    if (facts.progress.iteration or 0) > (rank.progress.iteration or 0) or (
        loader is not None and theirs is not None and theirs.batches > loader.batches
    ):
        return True
    # The traceback is newer than the last sample of what it did.
    error = facts.reported.exception
    functions = [frame.function for frame in error.frames] if error else [facts.reported.activity]
    return any("backward" in (function or "") for function in functions)


def uneven_advice(rank: RankFacts) -> str:
    """The advice if a rank has done all of its work while others still have some."""
    if rank.comm.mpi is not None:
        return (
            "uneven loops: let all ranks make the same number of collective calls, even a rank"
            " that has nothing left to do"
        )
    if rank.loader.report is not None and rank.loader.report.exhausted_unix_ns is None:
        # Its data had not ended: it decided to stop.
        return "stop on all ranks at the same step: all_reduce the flag that ends the loop"
    # Without a DataLoader nobody knows whether its data have ended.
    of_data = rank.loader.report is not None
    return "uneven inputs: use DDP's join(), drop_last=True or shards of equal length" + (
        "" if of_data else "; a decision of its own: all_reduce the flag that ends the loop"
    )


def troubles(rank: RankFacts, since_unix_ns: int, policy: Policy) -> dict[object, str]:
    """What has gone wrong in a rank at fault or a thread of it, or has called it away, as text by
    what is the same on another rank: `rank 1 is handling OSError: [Errno 28] No space left on
    device (save, train.py:31)`.

    `since_unix_ns`: when the wait for it began. A save counts that has failed about then or later.
    """
    found: dict[object, str] = {}
    reported, who = rank.reported, f"rank {rank.rank}"
    handling, handler, save = reported.handling, reported.in_handler, reported.failed_save
    error = reported.exception
    if save is not None and since_unix_ns - save.unix_ns <= policy.still_limit_s * 1e9:
        full = "its disk is full: " if is_full(save.free_bytes, save.total_bytes, policy) else ""
        why = full + clipped(save.error, TROUBLE_CHARACTERS)
        found[save.call, save.error] = f"{who}'s {save.call} to {save.path} has failed: {why}"
    elif handling is not None:
        text = f": {handling.text}" if handling.text else ""
        of = f": {handling.path}" if handling.path else ""
        found[handling.type, handling.place] = (
            f"{who} is handling {handling.type}{text}{of}{_at(handling.place)}"
        )
    if error is not None and not fatal_exception(rank):
        # What the thread had put into a queue may feed the rank for long afterwards.
        before_s = (since_unix_ns - error.unix_ns) / 1e9
        before = f", {duration(before_s)} before" if before_s >= 1.0 else ""
        text = clipped(f"{error.type}: {error.text}", TROUBLE_CHARACTERS)
        found[error.type, error.place] = (
            f"{who}'s {thread_text(error.thread)} raised {text}{_at(error.place)}{before}"
        )
    if handler is not None:
        found[handler.type] = f"{who} is in its handler of {handler.type}{_at(handler.place)}"
    return found


def _at(place: Place | None) -> str:
    return f" ({function_text(place)}, {file_line(place)})" if place is not None else ""


OF_GROUP = "the process group "
"""How the countdown of a group begins; the banner leaves it out."""


def with_timeout(said: Said, snapshot: Snapshot, blame: Blame) -> Said:
    """The same, with the time that is left until the process group times out."""
    limit_s = timeout_s(snapshot, blame)
    if limit_s is None:
        return said
    remaining = limit_s - (snapshot.time_unix_ns - blame.since_unix_ns) / 1e9
    left = f"{OF_GROUP}times out in {duration(remaining)}"
    return said._replace(countdown=left if remaining > 0 else "its timeout has passed")


TAGS_MAX = 4


def traffic_lines(snapshot: Snapshot, wait: PeerWait) -> list[str]:
    """`rank 0 has sent to rank 1: 1 with tag 7 (receives begun: 0), none with tag 99`; empty if
    nothing is counted. A receiver that has received from any rank has only a total.
    """
    if wait.peer is None or wait.group is None:
        return []
    waiter, peer = snapshot.rank(wait.rank), snapshot.rank(wait.peer)
    receives = wait.call in RECEIVES
    sender, receiver = (peer, waiter) if receives else (waiter, peer)
    if sender.comm.mpi is None or receiver.comm.mpi is None:
        return []
    sent = _counts(sender, wait.group, receiver.rank, sent=True)
    taken = _counts(receiver, wait.group, sender.rank, sent=False)
    if not sent and not taken:
        return []
    parts = [
        f"{count} with tag {tag}" + (f" (receives begun: {taken.get(tag, 0)})" if taken else "")
        for tag, count in sorted(sent.items())
    ]
    parts = parts[:TAGS_MAX]
    if wait.tag is not None and not sent.get(wait.tag):
        parts.append(f"none with tag {wait.tag}")
    return [f"rank {sender.rank} has sent to rank {receiver.rank}: {', '.join(parts) or 'nothing'}"]


def sent_itself(snapshot: Snapshot, wait: PeerWait) -> str:
    """`nothing`, `nothing more`, `nothing with tag 7`: of a rank that receives from itself."""
    sent = _counts(snapshot.rank(wait.rank), wait.group or "", wait.rank, sent=True)
    if not sent:
        return "nothing"
    return "nothing more" if wait.tag in (None, *sent) else f"nothing with tag {wait.tag}"


def too_few_receives(snapshot: Snapshot, wait: PeerWait) -> str | None:
    """`142 messages have been sent to rank 0, which has begun 141 receives`: of a send to a rank
    that receives from any rank, and less often than the others send.
    """
    receiver, group = snapshot.rank(wait.peer or 0), wait.group or ""
    kept = receiver.comm.mpi.traffic if receiver.comm.mpi is not None else ()
    if wait.call not in SENDS or wait.peer is None or not takes_any(kept, group):
        return None
    sent, begun = _messages(snapshot, receiver, group)
    if sent <= begun:
        return None
    return (
        f"{sent} messages have been sent to rank {receiver.rank}, which has begun {begun} receives"
    )


def _messages(snapshot: Snapshot, receiver: RankFacts, group: str) -> tuple[int, int]:
    """How many messages have been sent to this rank, and how many receives it has begun."""
    kept = receiver.comm.mpi.traffic if receiver.comm.mpi is not None else ()
    sent = sum(
        count
        for rank in snapshot.ranks
        for count in _counts(rank, group, receiver.rank, sent=True).values()
    )
    return sent, sum(traffic.received for traffic in kept if traffic.group == group)


def is_left(snapshot: Snapshot, wait: PeerWait) -> bool:
    """Whether this rank receives from any rank, and has not received all that was sent to it."""
    sent, begun = _messages(snapshot, snapshot.rank(wait.rank), wait.group or "")
    return wait.peer is None and wait.call in RECEIVES and sent >= begun > 0


def other_tag(snapshot: Snapshot, wait: PeerWait) -> str | None:
    """`rank 0's last send to rank 1 had tag 11`, as in `sent_otherwise`."""
    found = sent_otherwise(snapshot, wait)
    if found is None:
        return None
    return f"rank {found[0]}'s last send to rank {wait.rank} had tag {found[1]}"


def sent_otherwise(snapshot: Snapshot, wait: PeerWait) -> tuple[int, int] | None:
    """(a rank, the tag of its last send to the one that waits to receive), where that one waits for
    another tag, and has not received that send as far as it is counted: of a receive from any rank
    it is not.
    """
    if wait.call not in RECEIVES or wait.group is None or wait.tag is None:
        return None
    waiter = snapshot.rank(wait.rank).comm.mpi
    if wait.peer is not None and waiter is not None and takes_any(waiter.traffic, wait.group):
        return None
    for sender in map(snapshot.rank, wait.behind if wait.peer is None else (wait.peer,)):
        taken = _counts(snapshot.rank(wait.rank), wait.group, sender.rank, sent=False)
        for traffic in sender.comm.mpi.traffic if sender.comm.mpi is not None else ():
            is_it = traffic.is_last and (traffic.group, traffic.peer) == (wait.group, wait.rank)
            waits = wait.peer is None or traffic.sent > taken.get(traffic.tag or 0, 0)
            if is_it and traffic.tag not in (None, wait.tag) and waits:
                return sender.rank, traffic.tag or 0
    return None


def _counts(rank: RankFacts, group: str, peer: int, sent: bool) -> dict[int, int]:
    kept = rank.comm.mpi.traffic if rank.comm.mpi is not None else ()
    found = {
        traffic.tag: traffic.sent if sent else traffic.received
        for traffic in kept
        if traffic.tag is not None and (traffic.group, traffic.peer) == (group, peer)
    }
    return {tag: count for tag, count in found.items() if count}
