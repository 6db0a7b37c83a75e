"""What a rank waits for, to the end of its wait chain: as a clause, as lines, and what to do.

`ENDS` has a row for each kind of end: its test, and the next step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from ddtop.diagnosis.kinds import Kind
from ddtop.model.account import does, other_threads
from ddtop.model.chain import chain_of, closes_circle, inside_end
from ddtop.model.ending import fatal_exception
from ddtop.model.facts import RankFacts
from ddtop.model.kernel_wait import short, wait_of
from ddtop.wire.records import (
    ALONE,
    BACKLOG,
    BLOCKS,
    CALL,
    CHANGES,
    CHILD,
    CONNECTION,
    DEBUGGER,
    ENDING,
    ENDLESS,
    ENDS_AGAIN,
    FILE_LOCK,
    FROZEN,
    INHERITED,
    KEPT,
    KEY,
    LISTENS,
    LOCK,
    LOOKUP,
    LOOP,
    MAY,
    MOUNT,
    OBJECT,
    OF_TASK,
    PIPE,
    PROCESS,
    REPLACES,
    RETRY,
    RPC,
    SHARED,
    SIGNAL,
    STARVED,
    TAKEN,
    TAKES,
    TASK,
    THREAD,
    TIMED,
    TWICE,
    UNDONE,
    Handling,
    LastException,
    Link,
    Place,
    ProcessState,
    Sleeper,
)
from ddtop.words.sentences import WAITS, file_line, function_text, thread_text

OF_CHAIN = (Kind.NOT_IN_COLLECTIVE, Kind.WAIT_CYCLE, Kind.IO_STALL, Kind.INTERPRETER_FROZEN)
"""Kinds of findings that say the chain of their rank."""
_STATES = {
    "R": "computes",
    "T": "is stopped",
    "t": "is held by a debugger",
    "Z": "has ended",
    FROZEN: "is frozen by its cgroup",
}
_CONNECTS, _MAIN, _FOR = "SYN_SENT", "MainThread", "waits for "


def chain_clause(rank: RankFacts, end: RankFacts | None = None) -> str:
    """`: it waits for its child cat (pid 88), which waits for the pipe /d/shard-100, which no
    other process writes`; empty if no chain is known. `end`: as in `closes_circle`."""
    links = chain_of(rank)
    if not links:
        return ""
    text, *then = _texts(rank, end)
    if links[0].resource == CHILD:
        # The sentence has said that it waits for it.
        text = " ".join([_who(links[0]), *(one.partition(" ")[2] for one in then[:1])])
        then = then[1:]
    elif links[0].resource == PIPE and links[0].nobody:
        # The sentence has said that it reads one.
        named = f"the pipe {short(links[0].named)}" if links[0].named else "that pipe"
        text = f"no other process {links[0].does} {named}"
    else:
        text = f"it {text}"
    return ": " + ", ".join([text, *then]) + (f": {CIRCLE}" if closes_circle(rank, end) else "")


def chain_lines(rank: RankFacts, end: RankFacts | None = None) -> list[str]:
    """The chain as a small tree, a line for each link."""
    texts = _texts(rank, end)
    lines = [
        "  " * deep + "└ " + text if deep else f"rank {rank.rank} {text}"
        for deep, text in enumerate(texts)
    ]
    return [*lines[:-1], f"{lines[-1]}: {CIRCLE}"] if closes_circle(rank, end) else lines


def _texts(rank: RankFacts, end: RankFacts | None) -> list[str]:
    """A text for each link, and one for what the last one does: `which waits for a pipe`."""
    links = chain_of(rank)
    texts = list(map(waits_text, links))
    if links and (within := inside_end(end)):
        answers = f"where {_who(within[0])} {waits_text(within[1])}"
        then = [f"which {waits_text(link)}" for link in within[2:]]
        return [*_joined(links, texts), answers, *then, f"which waits for rank {rank.rank}"]
    texts += filter(None, [_end_text(link, rank, end) for link in links[-1:]])
    if len(links) > 1 and links[-1].resource == CHILD and links[-1].does:
        # Nothing shows that the loop waits for it.
        texts[-2:] = [f"has a child, {_who(links[-1])}, that {texts[-1]}"]
    return _joined(links, texts)


def _joined(links: Sequence[Link], texts: Sequence[str]) -> list[str]:
    # The rank itself does what follows the condition of its loop.
    joins = ["and" if link.resource in (LOOP, RETRY) else "which" for link in links]
    then = [_at(link, text) for link, text in zip(links, texts[1:], strict=False)]
    return [*texts[:1], *(f"{join} {text}" for join, text in zip(joins, then, strict=False))]


def _at(link: Link, text: str) -> str:
    """What its process waits for, with the line at which it stands."""
    if link.pid is None or link.place is None or not text.startswith(_FOR):
        return text
    where = f"{function_text(link.place)} ({file_line(link.place)})"
    return f"waits in {where} for {text.removeprefix(_FOR)}"


def _end_text(link: Link, rank: RankFacts, end: RankFacts | None) -> str | None:
    """What the last one does."""
    if end is not None and link.place is None:
        error = _lost_thread(end)
        lost = f"has lost its {thread_text(error.thread)} to {error.type}, and " if error else ""
        return f"{lost}waits for rank {rank.rank}"
    return _does(link) if not link.nobody and not link.circle else None


def chain_step(rank: RankFacts, end: RankFacts | None = None) -> str | None:
    """What to do about the end of the chain; None where none is known."""
    links = chain_of(rank)
    if closes_circle(rank, end):
        closes = (inside_end(end) or links)[-1]
        return next(step for holds, step in _CIRCLES if holds(closes))
    if (error := ended_thread(rank)) is not None:
        return (
            f"repair {error.type}{_raised_at(error)}, with which its {thread_text(error.thread)}"
            " has ended, and let the program notice such an end"
        )
    if end is not None and links[-1].place is None and (step := _step_of_rank(end, links, rank)):
        return step
    tried, last = rank.reported.handling, links[-1] if links else None
    if tried is not None and last is not None and last.resource == RETRY:
        last = msgspec.structs.replace(last, who=_cause_of(tried) or last.who)
    known = next((one for one in ENDS if last is not None and one.holds(last)), None)
    return known.step(last) if known is not None and last is not None else None


def _step_of_rank(end: RankFacts, links: Sequence[Link], rank: RankFacts) -> str | None:
    """What to do about a rank at the end of the chain that waits for this one itself."""
    mine = f"rank {end.rank} itself waits for rank {rank.rank}"
    if (error := _lost_thread(end)) is not None:
        return f"repair {error.type}{_raised_at(error)} in a thread of rank {end.rank}: {mine}"
    threads, named = threads_of(end), _named(links[-1])
    if not threads:
        return None
    if links[-1].does == BACKLOG:
        return (
            f"let rank {end.rank} accept at {named}: its thread serves another client"
            f" ({threads[0]}); give each client a thread of its own, and that call a timeout"
        )
    has = links[-1].resource == FILE_LOCK
    does = f"has {named}, and let it release the lock" if has else "does not answer"
    return f"see why that thread of rank {end.rank} {does}: {threads[0]}; {mine}"


def _cause_of(tried: Handling) -> str | None:
    """The exception of Python that says the same, of one of a library."""
    known = (name for text, name in _BY_TEXT.items() if text in tried.text)
    return next(known, None) if tried.type not in _REPAIRS else None


def _raised_at(error: LastException) -> str:
    return _in(error.place)


def _lost_thread(rank: RankFacts) -> LastException | None:
    """The exception that has ended a thread of this rank, which lives on."""
    error = rank.reported.exception
    return error if error is not None and not fatal_exception(rank) else None


def threads_of(rank: RankFacts) -> list[str]:
    """Where its other threads that run the program stand, if its stacks were taken."""
    stacks = rank.dump.stacks
    return other_threads(stacks) if stacks is not None and stacks.method else []


def ended_thread(rank: RankFacts) -> LastException | None:
    """The exception that has ended a thread of it, if it waits for what a thread may have to do."""
    links, error = chain_of(rank), rank.reported.exception
    if error is None or fatal_exception(rank):
        return None
    last = links[-1] if links else None
    if last is None:
        return error if does(rank).word in ("queue", "lock") else None
    of_task = last.resource == TASK and error.thread.startswith(OF_TASK)
    nobody = last.does == ALONE or (last.resource == ENDING and last.nobody)
    return error if of_task or last.resource == LOOP or nobody else None


def _who(link: Link) -> str:
    """`cat (pid 88)`, `its thread refresher`."""
    if link.rank is not None:
        return f"rank {link.rank}"
    if link.pid is not None:
        host = f" on {link.host}" if link.host is not None else ""
        return f"{link.who or 'a process'} (pid {link.pid}{host})"
    if link.who == _MAIN:
        return "its main thread"
    return f"its {f'task {link.who}' if link.resource == TASK else thread_text(link.who or '')}"


def _of_pipe(link: Link) -> str:
    if link.does == INHERITED:
        return "reads its standard input, which is that of its parent, and nothing comes"
    if link.does == KEPT:
        return (
            "waits for the end of a pipe: the child that had it has ended, but"
            f" {_who(link)} still has it open"
        )
    what = f"waits for the pipe {short(link.named)}" if link.named else "waits for a pipe"
    return (
        f"{what}, which no other process {link.does}"
        if link.nobody
        else _owned(what, link, link.does)
    )


def _of_connection(link: Link) -> str:
    if link.does == LISTENS:
        return f"waits for a connection at {link.named or 'its socket'}, and nobody connects"
    if link.does == BACKLOG:
        known = link.pid is not None or link.rank is not None
        whose = f"{_who(link)} listens and" if known else "nobody"
        return f"waits for an answer of {link.named}, where {whose} has not accepted the connection"
    if link.does != _CONNECTS:
        # A socket between a process and its child has no name.
        whose = f"waits for an answer on a socket, whose other end {_who(link)} has"
        named = f"waits for an answer of {link.named}"
        return _owned(named, link, "serves") if link.named else whose
    why = "which does not answer" if link.pid is None else f"where {_who(link)} does not accept it"
    return f"connects to {link.named}, {why}"


def _of_task(link: Link) -> str:
    limit = f", and that {link.does}" if link.does else ""
    return f"waits for {_who(link)}, which stands at `{link.named}`{_in(link.place)}{limit}"


_OBJECTS: dict[str, Callable[[Link], str]] = {
    ALONE: lambda link: (
        f"waits for the {link.named}, and no other thread of it runs code of the program"
    ),
    CALL: lambda link: f"waits in `{link.named}`",
    STARVED: lambda _: "waits for a future, and all threads of that pool wait for futures too",
    TAKEN: lambda _: "waits for a free connection of a pool, and all are in use",
    UNDONE: lambda _: "waits for items of a queue that were taken, and never marked as done",
}
"""By `Link.does`."""


def _of_object(link: Link) -> str:
    if link.does in _OBJECTS:
        return _OBJECTS[link.does](link)
    if not link.named:
        return f"depends on {_who(link)}"
    return f"waits for the {link.named} that {_who(link)} {link.does}"


def _of_ending(link: Link) -> str:
    what = f"waits in `{link.named}`" if link.named else "waits"
    by = f"`{link.does}`{_in(link.at)}"
    if link.nobody:
        ended = f": {_who(link)} has ended" if link.who is not None else ""
        return f"{what}, which {by} would end, and no thread comes there{ended}"
    return f"{what} until {_who(link)} comes to {by}"


def _in(place: Place | None) -> str:
    return f" in {function_text(place)} ({file_line(place)})" if place is not None else ""


def _of_lock(link: Link) -> str:
    if link.does == TWICE and link.place is not None:
        where = f"{function_text(link.place)} ({file_line(link.place)})"
        return f"waits for `{link.named}`, which it has taken itself before, in {where}"
    if link.does == BLOCKS:
        return (
            f"waits for `{link.named}`, which no other thread has: it blocks the event loop whose"
            " tasks may have it"
        )
    if link.who is None:
        return f"waits for `{link.named}`" + (f", and {link.does}" if link.does else "")
    has = f"has{_in(link.place)}" if link.circle else "has"
    return _owned(f"waits for `{link.named}`", link, has)


def _of_shared_lock(link: Link) -> str:
    what = "waits for a lock or an event that processes share"
    what += f" ({link.named})" if link.named else ""
    if link.nobody:
        return f"{what}, and each process that shares it waits"
    if link.does == MAY:
        return f"{what}, and only {_who(link)} can release or set it"
    return _owned(what, link, "has")


_WAITS: dict[str, Callable[[Link], str]] = {
    CHILD: lambda link: (
        f"waits for {'' if link.does in (REPLACES, ENDS_AGAIN) else 'its child '}{_who(link)}"
    ),
    CONNECTION: _of_connection,
    FILE_LOCK: lambda link: _owned(f"waits for the lock on {short(link.named)}", link, "has"),
    DEBUGGER: lambda link: f"is held by {_who(link)}, which traces it",
    ENDING: _of_ending,
    KEY: lambda link: (
        f"tries to take the key {link.named} of the store"
        if link.does == TAKES
        else f"waits for the key {link.named} of the store"
        + (f", and {link.does}" if link.does else "")
    ),
    LOCK: _of_lock,
    LOOP: lambda link: (
        f"goes on while `{link.named}` ({_spot(link)})"
        + (f", and {link.does}" if link.does else "")
    ),
    LOOKUP: lambda link: f"waits for the name server {link.named} to look up a name",
    MOUNT: lambda link: f"waits for the file system of {short(link.named)} ({link.does})",
    PIPE: _of_pipe,
    OBJECT: _of_object,
    PROCESS: lambda link: f"waits for {_who(link)}",
    RETRY: lambda link: (
        f"tries `{link.named}` again and again ({_spot(link)})"
        + (f", and {link.does}" if link.does else "")
    ),
    RPC: lambda link: f"waits for a call that {_who(link)} runs",
    SHARED: _of_shared_lock,
    SIGNAL: lambda link: f"waits for {'the signal ' if link.named else 'a signal'}{link.named}",
    TASK: _of_task,
    THREAD: lambda link: f"waits for {_who(link)}",
    # A newer agent may send a kind of its own.
    "": lambda link: _owned(f"waits for {short(link.named) or link.resource}", link, "has"),
}
"""What is awaited, and who has it: `waits for the lock on /d/x, which cat (pid 88) has`."""


def waits_text(link: Link) -> str:
    """`waits for the lock on /d/tiles.idx, which python (pid 4712) has`."""
    return (_WAITS.get(link.resource) or _WAITS[""])(link)


def _owned(what: str, link: Link, has: str) -> str:
    if link.pid is None and link.who is None:
        return what
    return f"{what}, which {_who(link)} {has}"


def _spot(link: Link) -> str:
    return file_line(link.place) if link.place is not None else "?"


_WORKERS = {
    REPLACES: "has taken the place of one that ended, whose task is lost",
    ENDS_AGAIN: "has taken the place of one that ended: each worker ends right after its start",
}


def _does(link: Link) -> str | None:
    """What the one does that has it: `is asleep`, `computes`; None where that is not known."""
    if link.resource in (TASK, MOUNT, LOOKUP, DEBUGGER, RETRY) or link.does == CALL:
        return None
    if link.does in _WORKERS:
        return _WORKERS[link.does]
    if link.resource == CHILD and link.does:
        return f"ended with {link.does}"
    if link.place is not None and link.pid is None:
        known = WAITS.get(link.place.waits_on or "")
        where = f"{function_text(link.place)} ({file_line(link.place)})"
        now = f"is {known.phrase + ' ' if known else ''}in {where}"
        return now if link.resource not in (LOOP, KEY) else None
    process = link.process
    if process is None:
        return "is a process of another user" if link.pid is not None else None
    wait, known = _kernel_wait(link), WAITS.get((link.place.waits_on if link.place else None) or "")
    now = f"is {wait[1]}" if wait is not None else _STATES.get(process.state, "is asleep")
    if known is not None and wait is not None and wait[0] == "sleep":
        # It asks for that again and again.
        now = f"is {known.phrase}"
    return now + _in(link.place)


def _kernel_wait(link: Link) -> tuple[str, str] | None:
    """The wait of its process in the kernel, as `wait_of`."""
    if link.process is None:
        return None
    state, sleeps_in, call, file = msgspec.structs.astuple(link.process)
    return wait_of(ProcessState(None, link.pid or 0, state, sleeps_in, syscall=call, file=file))


class End(NamedTuple):
    """A kind of end. `step`: the next step."""

    holds: Callable[[Link], bool]
    step: Callable[[Link], str]


def _is(link: Link, resource: str) -> bool:
    return link.resource == resource


def _runs(process: Sleeper | None) -> bool:
    return process is not None and process.state == "R"


def _named(link: Link) -> str:
    return short(link.named) or f"that {link.resource}"


CIRCLE = "a circle"
_CIRCLES = (
    (
        lambda link: link.does == TWICE,
        "take that lock once (call the inner function with the lock already held), or use"
        " threading.RLock; asyncio has none",
    ),
    (
        lambda link: _is(link, PIPE) and link.does == "reads",
        "they wait for each other: read what the other one writes before you wait for it"
        " (subprocess: communicate()), or let one of them not wait",
    ),
    (
        lambda link: _is(link, PIPE),
        "they wait for each other: write what the other one waits for, or close that end, before"
        " you wait for it",
    ),
    (
        lambda link: _is(link, FILE_LOCK),
        "they wait for each other: release that lock before you wait for the one that needs it (a"
        " collective, a worker, a child)",
    ),
    (
        lambda link: _is(link, ENDING),
        "they wait for each other: let the line that ends that wait come before it, or run in"
        " another thread; give that wait a time limit",
    ),
    (
        lambda link: _is(link, LOCK),
        "they wait for each other: release that lock before you wait for the thread or task that"
        " needs it",
    ),
    (
        lambda _: True,
        "they wait for each other: let one of them go on first, or give one of these waits a time"
        " limit",
    ),
)
"""What to do about a circle, by its last link."""

_WHY, _FAILED = {"exit code 0": " before this wait is over"}, " (out of memory, an exception)"
_SHOULD = {
    "condition": "notify",
    "event": "set",
    "semaphore": "release",
    "boundedsemaphore": "release",
    "queue": "feed",
    "barrier": "come to",
}
"""What a thread should do with the object for which another one waits."""
_LISTENS = "start the server that should listen there, or correct the address"
_REPAIRS = {
    "ConnectionRefusedError": _LISTENS,
    "ConnectionError": _LISTENS,
    "ConnectError": _LISTENS,
    "URLError": _LISTENS,
    "gaierror": "correct that name, or repair the name server",
    "FileExistsError": (
        "remove that file if the process that made it has ended, and use a lock that ends with its"
        " process (fcntl.flock)"
    ),
    "FileNotFoundError": "find out which process should write that file, and why it has not",
    "PermissionError": "give this user the right to that file",
}
"""What to do about a statement that fails again and again, by its exception."""
_BY_TEXT = {
    "refused": "ConnectionRefusedError",
    "Name or service not known": "gaierror",
    "No such file": "FileNotFoundError",
}
"""... of a library's own exception, by what it says."""

ENDS = (
    End(
        lambda link: _is(link, DEBUGGER),
        lambda link: f"let {_who(link)} detach, or end it: it holds that process",
    ),
    End(
        lambda link: _is(link, SIGNAL),
        lambda link: (
            f"find out who should send it {link.named or 'that signal'}, and why that has not come;"
            " give that wait a time limit (signal.sigtimedwait)"
        ),
    ),
    End(
        lambda link: link.does == LISTENS,
        lambda link: (
            f"find out which process should connect to {_named(link)}, and why it does not; give"
            " that wait a time limit (settimeout)"
        ),
    ),
    End(
        lambda link: link.does == TAKES,
        lambda link: (
            f"find out which rank has the key {link.named}, and has not given it back (an exception"
            " between the two?); give that loop a time limit"
        ),
    ),
    End(
        lambda link: link.process is not None and link.process.state in ("T", "t"),
        lambda link: (
            f"let {_who(link)} go on: kill -CONT {link.pid}; find out who stopped it (a debugger,"
            " a scheduler, a terminal)"
        ),
    ),
    End(
        lambda link: link.process is not None and link.process.state == FROZEN,
        lambda link: (
            f"thaw {_who(link)} (0 in cgroup.freeze of its cgroup, THAWED in freezer.state), or"
            " find out who has frozen it (docker pause, a scheduler)"
        ),
    ),
    End(
        lambda link: _is(link, MOUNT),
        lambda link: (
            f"fix the server or disk behind {_named(link)} ({link.does}), or the way to it; kill -9"
            " has no effect until it answers"
        ),
    ),
    End(
        lambda link: _is(link, LOOKUP),
        lambda link: (
            f"check the name server {link.named} (/etc/resolv.conf), or give the address instead of"
            " the name"
        ),
    ),
    End(
        lambda link: link.does == CALL,
        lambda link: (
            f"find out which thread should end `{link.named}` ({_spot(link)}), and why it has not;"
            " give that wait a time limit"
        ),
    ),
    End(
        lambda link: _is(link, ENDING) and link.nobody,
        lambda link: (
            f"find out why no thread comes to `{link.does}`{_in(link.at)}: the one that should come"
            " there has ended"
            + (f" ({_who(link)} has; is its exception caught?)" if link.who is not None else "")
            + ", was never started, or has left before that line; give that wait a time limit"
        ),
    ),
    End(
        lambda link: link.does == KEPT,
        lambda link: (
            "let what stays in the background not keep that pipe (>/dev/null 2>&1,"
            f" stdout=subprocess.DEVNULL), or end {_who(link)}"
        ),
    ),
    End(
        lambda link: link.does == BLOCKS,
        lambda link: (
            f"let tasks take `{link.named}` by `async with` of an asyncio.Lock: a lock of threads"
            " that one task has over an await stops the loop for all"
        ),
    ),
    End(
        lambda link: link.does == STARVED,
        lambda _: (
            "let no task of a pool wait for another task of the same pool: use another pool for the"
            " inner ones, or more threads"
        ),
    ),
    End(
        lambda link: link.does == TAKEN,
        lambda _: (
            "give each connection back: read the answer to its end, or close it, also after an"
            " exception (with, async with); or raise the limit of that pool"
        ),
    ),
    End(
        lambda link: link.does == INHERITED,
        lambda _: (
            "give that process its input (is a file missing in its command?), or start it with"
            " stdin=subprocess.DEVNULL"
        ),
    ),
    End(
        lambda link: link.does == BACKLOG and link.pid is not None,
        lambda link: (
            f"find out why {_who(link)} does not accept at {link.named}: the thread that should has"
            " ended, or serves another client; give that call a timeout"
        ),
    ),
    End(
        lambda link: link.does == UNDONE,
        lambda _: (
            "call task_done for each item that get returns, also after an exception (try, finally):"
            " join waits for it"
        ),
    ),
    End(
        lambda link: link.does == ALONE,
        lambda link: (
            f"find out why the thread that should {_SHOULD.get(link.named, 'use')} the"
            f" {link.named} has ended or was not started; give that wait a time limit"
        ),
    ),
    End(
        lambda link: _is(link, RETRY),
        lambda link: (
            f"{_REPAIRS.get(link.who or '', f'repair the cause of {link.who}')} ({_spot(link)});"
            " let it give up after some tries"
        ),
    ),
    End(
        lambda link: link.does == ENDS_AGAIN,
        lambda _: (
            "read what the workers of that pool print: each ends right after its start (an"
            " exception in the initializer, or at import), and multiprocessing.Pool starts the next"
            " one for ever"
        ),
    ),
    End(
        lambda link: link.does == REPLACES,
        lambda _: (
            "find out what ended a worker of that pool (out of memory?): multiprocessing.Pool"
            " starts another one and waits for ever; concurrent.futures.ProcessPoolExecutor raises"
            " BrokenProcessPool"
        ),
    ),
    End(
        lambda link: _is(link, CHILD) and bool(link.does),
        lambda link: (
            f"find out why {_who(link)} ended with {link.does}{_WHY.get(link.does, _FAILED)}, and"
            " let the program notice the end of such a process"
        ),
    ),
    End(
        lambda link: _is(link, KEY),
        lambda link: (
            f"find out which rank should set the key {link.named}, and why it has not; give that"
            " wait a time limit"
        ),
    ),
    End(
        lambda link: _is(link, PIPE) and link.nobody,
        lambda link: (
            f"start the process that {link.does} {_named(link)}, or find out why it has ended: no"
            " other process has the other end open"
        ),
    ),
    End(
        lambda link: _is(link, CONNECTION) and link.does == _CONNECTS and link.pid is not None,
        lambda link: (
            f"repair {_who(link)}: it listens at {link.named} and accepts nobody (it"
            f" {_does(link)}); give that call a timeout"
        ),
    ),
    End(
        lambda link: _is(link, CONNECTION) and link.does == _CONNECTS,
        lambda link: (
            f"check that a server listens at {link.named}, and the way to it; give that call a"
            " timeout"
        ),
    ),
    End(
        lambda link: _is(link, CONNECTION) and link.pid is None and link.who is not None,
        lambda link: f"see why {_who(link)} does not answer at {_named(link)}: it {_does(link)}",
    ),
    End(
        lambda link: _is(link, CONNECTION) and link.pid is None,
        lambda link: f"find out why {link.named} does not answer; give that call a timeout",
    ),
    End(
        lambda link: link.resource in (PIPE, CONNECTION, CHILD) and _runs(link.process),
        lambda link: f"let {_who(link)} finish, or check whether its loop ends",
    ),
    End(
        lambda link: _is(link, CHILD) and (_kernel_wait(link) or ("",))[0] == "lock",
        lambda link: (
            f"start {_who(link)} by spawn, or before the rank has threads: it {_does(link)}, and"
            " fork does not copy the thread that would release that lock"
        ),
    ),
    End(
        lambda link: _is(link, CHILD),
        lambda link: (
            f"find out whether {_who(link)} ends by itself: it {_does(link)}; give the wait for it"
            " a time limit"
        ),
    ),
    End(
        lambda link: _is(link, CONNECTION) and bool(link.named),
        lambda link: (
            f"repair {_who(link)}, the server at {link.named}: it {_does(link)}; give that call a"
            " timeout"
        ),
    ),
    End(
        lambda link: _is(link, LOCK) and link.who is None,
        lambda link: (
            f"find out which thread or process has taken `{link.named}`, and why it has not"
            " released it (an exception between the two, an end); give that wait a time limit"
        ),
    ),
    End(
        lambda link: _is(link, SHARED) and link.nobody,
        lambda _: (
            "find out which process should have released or set it, and why it has not (it was"
            " killed, has ended, or left by return or an exception): take a lock by `with`, and"
            " start these processes again"
        ),
    ),
    End(
        lambda link: _is(link, SHARED) and link.pid is not None,
        lambda link: (
            f"let {_who(link)}, which {_does(link)}, release or set it; give that wait a time limit"
        ),
    ),
    End(
        lambda link: _is(link, FILE_LOCK) and link.pid is not None,
        lambda link: (
            f"end {_who(link)}, or let it release the lock on {_named(link)}; give that wait a time"
            " limit"
        ),
    ),
    End(
        lambda link: link.pid is not None,
        lambda link: f"repair {_who(link)}: it {_does(link)}; give the wait for it a time limit",
    ),
    End(
        lambda link: _is(link, TASK),
        lambda link: (
            f"find out who should end `{link.named}` ({_spot(link)}), and why it has not"
            + (
                ""
                if link.does
                else "; give that await a time limit (asyncio.timeout, trio.fail_after)"
            )
        ),
    ),
    End(
        lambda link: _is(link, LOOP) and link.named == ENDLESS,
        lambda link: f"make the loop at {_spot(link)} end: nothing in it leaves it",
    ),
    End(
        lambda link: _is(link, LOOP) and link.does.endswith(CHANGES),
        lambda link: f"let the loop at {_spot(link)} end, or do this work on all ranks",
    ),
    End(
        lambda link: _is(link, LOOP) and link.does.endswith(TIMED),
        lambda link: (
            f"let the loop at {_spot(link)} end, or give it a shorter time limit; find out why it"
            " has not ended before"
        ),
    ),
    End(
        lambda link: (
            _is(link, LOOP) and "exists(" in link.named and not link.named.startswith("not ")
        ),
        lambda link: (
            f"find out which process should remove the file for which {_spot(link)} waits, and"
            " whether that one has ended; give that loop a time limit"
        ),
    ),
    End(
        lambda link: _is(link, LOOP) and "exists(" in link.named,
        lambda link: (
            f"find out which process should write the file for which {_spot(link)} waits, and why"
            " it has not; give that loop a time limit"
        ),
    ),
    End(
        lambda link: _is(link, LOOP),
        lambda link: (
            f"find out what should make `{link.named}` false, and why it has not; give that loop a"
            " time limit"
        ),
    ),
    End(
        lambda link: link.place is not None and link.who is not None,
        lambda link: (
            f"see why {_who(link)} does not go on: it {_does(link)}; give the wait for it a time"
            " limit"
        ),
    ),
    End(
        lambda link: link.nobody,
        lambda link: (
            f"find out which thread had {_named(link)} and has ended without releasing it; give"
            " that wait a time limit"
        ),
    ),
)
"""The first that holds gives the next step."""
