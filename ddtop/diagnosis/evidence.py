"""Lines of evidence that several rules show: a rank's process, its place, its stacks, its
DataLoader.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddtop.diagnosis.activity import CPU, classify, fresh_stacks, other_threads, stack_line
from ddtop.diagnosis.kernel_wait import sleeps
from ddtop.model.state.ending import went_unix_ns
from ddtop.model.state.facts import RankFacts, Snapshot, State
from ddtop.policy import Policy
from ddtop.words.exits import exit_text
from ddtop.words.ranks import verb
from ddtop.words.sentences import (
    clipped,
    coordinates_text,
    framework_text,
    function_text,
    rpc_text,
    stage_text,
)
from ddtop.words.units import duration

REASON_CHARACTERS = 80
_HOW = {"agent": "by its agent", "signal": "by signal", "py-spy": "by py-spy"}


def process_line(rank: RankFacts, policy: Policy) -> str | None:
    """`rank 2 (pid 4802): state D, 0% of a core, wchan nfs_wait_bit_killable, in write of
    /ckpt/7.pt, 2 children`.
    """
    process = rank.process.report
    if process is None:
        return None
    text = f"rank {rank.rank} (pid {process.pid}): state {process.state}"
    if process.frozen:
        text += ", its cgroup is frozen"
    text += (
        f", {rank.process.cpu_ratio:.0%} of a core"
        if rank.process.cpu_ratio is not None
        else ", CPU unknown"
    )
    if rank.process.lacks_cpu:
        text += " (ready to run, and other processes have the CPUs)"
    if rank.process.spinning:
        text += " (spins while it waits in MPI)"
    if process.wchan:
        text += f", wchan {process.wchan}"
    if process.syscall and sleeps(process):
        text += f", in {process.syscall}" + (f" of {process.file}" if process.file else "")
    if process.children:
        text += f", {process.children} {verb(range(process.children), 'child', 'children')}"
    found = classify(rank, policy)
    return f"{text}, {found.text}" if found.source == CPU else text


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
    return f"when its agent was last heard, rank {rank.rank} was at {where}"


def parallel_line(snapshot: Snapshot, rank: RankFacts) -> str | None:
    """`rank 2 is pp 1, tp 0; pipeline stage 1 (0-1), forward of microbatch 3 (0-7)`."""
    texts = [coordinates_text(snapshot.place_of(rank)), *map(stage_text, rank.comm.pipeline[:2])]
    if rank.hello is not None and rank.hello.role:
        texts.append(rank.hello.role)
    if rank.comm.rpc is not None:
        texts.append(rpc_text(rank.comm.rpc))
    text = "; ".join(filter(None, texts))
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


def stack_lines(rank: RankFacts, policy: Policy) -> list[str]:
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
    if classify(rank, policy).word == "gil":
        lines += [f"another thread of rank {rank.rank}: {line}" for line in other_threads(stacks)]
    owing = rank.loader.report.owing_pid if rank.loader.report is not None else None
    worker = next((one for one in rank.dump.worker_stacks if one.pid == owing and one.method), None)
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
    text = (
        f"its DataLoader: {loader.depth}/{loader.capacity} batches ready,"
        f" {loader.workers_alive}/{loader.workers} workers alive"
    )
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
        # gloo puts the path of its own source file before the reason.
        reason = re.sub(r"^\[[^\]]*\]\s*", "", exception.text)
        text += f", {exception.type}: {clipped(reason, REASON_CHARACTERS)}"
    ago = (snapshot.time_unix_ns - went_unix_ns(rank)) / 1e9
    return f"{text}, {duration(ago)} ago" if ago > 1 else text
