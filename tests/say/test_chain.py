"""What is said of a wait chain, and what to do at its end."""

import pytest

from ddtop.say.chain import chain_clause, chain_lines, chain_step
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
    INHERITED,
    ITSELF,
    KEPT,
    KEY,
    LOCK,
    LOOKUP,
    LOOP,
    MAY,
    MOUNT,
    OBJECT,
    PIPE,
    REPLACES,
    RETRY,
    SHARED,
    SIGNAL,
    STARVED,
    TAKEN,
    TASK,
    THREAD,
    TIMED,
    TWICE,
    UNDONE,
    Handling,
    Link,
    Place,
    Sleeper,
    StackFrame,
    Stacks,
    ThreadStack,
)
from tests.ui import builders
from tests.ui.changed import replace

ASLEEP = Sleeper("S", "hrtimer_nanosleep", "clock_nanosleep")
COMPUTES = Sleeper("R")
REFUSED = "ConnectionRefusedError"
REFRESH = Place("refresh", "/home/ada/cache.py", 22, "socket")
TAKE = Place("take", "/home/ada/shelf.py", 16)
FILL = Place("fill", "/home/ada/shelf.py", 20)
LOCKS = Place("take", "/home/ada/shelf.py", 16, "lock")
COLLECT = Place("collect", "/home/ada/train.py", 31)


def waiting(*links):
    return replace(builders.healthy_rank(2), reported={"chain": links})


CASES = {
    "a lock that it has itself": (
        (Link(LOCK, "self.gate", "task main", place=TAKE, does=TWICE, circle=True),),
        ": it waits for `self.gate`, which it has taken itself before, in take (shelf.py:16): a"
        " circle",
        "take that lock once (call the inner function with the lock already held)",
    ),
    "the line of a process on the way": (
        (
            Link(CHILD, who="cut.py", pid=88, process=ASLEEP, place=TAKE),
            Link(PIPE, who="read.py", pid=89, process=COMPUTES, does="writes"),
        ),
        ": cut.py (pid 88) waits in take (shelf.py:16) for a pipe, which read.py (pid 89) writes,"
        " which computes",
        "let read.py (pid 89) finish",
    ),
    "a line that would end the wait, to which a thread comes": (
        (Link(ENDING, "self.full.wait()", "filler", place=REFRESH, at=FILL, does="full.set()"),),
        ": it waits in `self.full.wait()` until its thread filler comes to `full.set()` in fill"
        " (shelf.py:20), which is waiting on a socket in refresh (cache.py:22)",
        "see why its thread filler does not go on: it is waiting on a socket in refresh",
    ),
    "a line that would end the wait, to which nobody comes": (
        (Link(ENDING, "self.full.wait()", nobody=True, at=FILL, does="full.set()"),),
        ": it waits in `self.full.wait()`, which `full.set()` in fill (shelf.py:20) would end, and"
        " no thread comes there",
        "find out why no thread comes to `full.set()` in fill (shelf.py:20): the one that should",
    ),
    "a line that would end the wait, to which the thread itself comes": (
        (Link(ENDING, who="task main", place=TAKE, at=FILL, does="full.set()", circle=True),),
        ": it waits until its task main comes to `full.set()` in fill (shelf.py:20): a circle",
        "they wait for each other: let the line that ends that wait come before it",
    ),
    "a lock that blocks an event loop": (
        (Link(LOCK, "guard", nobody=True, does=BLOCKS),),
        ": it waits for `guard`, which no other thread has: it blocks the event loop whose tasks"
        " may have it",
        "let tasks take `guard` by `async with` of an asyncio.Lock",
    ),
    "what is left in the background": (
        (Link(PIPE, who="sleep", pid=88, process=ASLEEP, does=KEPT),),
        ": it waits for the end of a pipe: the child that had it has ended, but sleep (pid 88)"
        " still has it open, which is asleep",
        "let what stays in the background not keep that pipe",
    ),
    "a task that has the lock and waits": (
        (Link(LOCK, "self.gate", "task main", place=TAKE, circle=True),),
        ": it waits for `self.gate`, which its task main has in take (shelf.py:16): a circle",
        "they wait for each other: release that lock before you wait for the thread or task",
    ),
    "a statement that fails because a child has ended": (
        (
            Link(RETRY, "s.connect(where)", REFUSED, place=COLLECT),
            Link(CHILD, who="serve.py", pid=88, process=Sleeper("Z"), does="exit code 1"),
        ),
        ": it tries `s.connect(where)` again and again (train.py:31), and has a child, serve.py"
        " (pid 88), that ended with exit code 1",
        "find out why serve.py (pid 88) ended with exit code 1",
    ),
    "a lock that no thread here has": (
        (Link(LOCK, "Lock(cache, name)", does="name is 'ops'"),),
        ": it waits for `Lock(cache, name)`, and name is 'ops'",
        "find out which thread or process has taken `Lock(cache, name)`, and why it has not",
    ),
    "a lock of processes that all wait": (
        (Link(SHARED, nobody=True),),
        ": it waits for a lock or an event that processes share, and each process that shares it"
        " waits",
        "find out which process should have released or set it, and why it has not",
    ),
    "a lock that one other process shares": (
        (Link(SHARED, "/d/lock.db", "cut.py", 88, ASLEEP, TAKE, does=MAY),),
        ": it waits for a lock or an event that processes share (/d/lock.db), and only cut.py (pid"
        " 88) can release or set it, which is asleep in take (shelf.py:16)",
        "let cut.py (pid 88), which is asleep in take (shelf.py:16), release or set it",
    ),
    "a child that asks for a lock again and again": (
        (Link(CHILD, who="cut.py", pid=88, process=ASLEEP, place=LOCKS),),
        ": cut.py (pid 88) is waiting for a lock in take (shelf.py:16)",
        "find out whether cut.py (pid 88) ends by itself: it is waiting for a lock in take",
    ),
    "a debugger": (
        (
            Link(PIPE, process=Sleeper("t"), who="cut.py", pid=88, does="writes"),
            Link(DEBUGGER, who="gdb", pid=91, process=ASLEEP),
        ),
        ": it waits for a pipe, which cut.py (pid 88) writes, which is held by gdb (pid 91), which"
        " traces it",
        "let gdb (pid 91) detach, or end it",
    ),
    "a frozen child": (
        (Link(CHILD, who="cut.py", pid=88, process=Sleeper("F")),),
        ": cut.py (pid 88) is frozen by its cgroup",
        "thaw cut.py (pid 88)",
    ),
    "a signal": (
        (Link(SIGNAL, "SIGUSR1"),),
        ": it waits for the signal SIGUSR1",
        "find out who should send it SIGUSR1",
    ),
    "any signal": ((Link(SIGNAL),), ": it waits for a signal", "find out who should send it that"),
    "a connection that nobody makes": (
        (Link(CONNECTION, "127.0.0.1:4455", does="listens", nobody=True),),
        ": it waits for a connection at 127.0.0.1:4455, and nobody connects",
        "find out which process should connect to 127.0.0.1:4455",
    ),
    "a key that is taken": (
        (Link(KEY, "'kernels/lock'", does="takes", place=TAKE),),
        ": it tries to take the key 'kernels/lock' of the store",
        "find out which rank has the key 'kernels/lock', and has not given it back",
    ),
    "a thread of its own that should answer": (
        (Link(CONNECTION, "127.0.0.1:4455", "handler", place=REFRESH, does="ESTABLISHED"),),
        ": it waits for an answer of 127.0.0.1:4455, which its thread handler serves, which is"
        " waiting on a socket in refresh (cache.py:22)",
        "see why its thread handler does not answer at 127.0.0.1:4455: it is waiting",
    ),
    "a pipe that nobody writes": (
        (
            Link(CHILD, who="cat", pid=88, process=ASLEEP),
            Link(PIPE, "/d/x", nobody=True, does="writes"),
        ),
        ": cat (pid 88) waits for the pipe /d/x, which no other process writes",
        "start the process that writes /d/x, or find out why it has ended",
    ),
    "a child that computes": (
        (Link(CHILD, who="cut.py", pid=88, process=COMPUTES),),
        ": cut.py (pid 88) computes",
        "let cut.py (pid 88) finish, or check whether its loop ends",
    ),
    "a file that is polled for": (
        (Link(LOOP, "not os.path.exists(path)", place=COLLECT, does="path is '/d/x.ok'"),),
        ": it goes on while `not os.path.exists(path)` (train.py:31), and path is '/d/x.ok'",
        "find out which process should write the file for which train.py:31 waits",
    ),
    "a file that should go": (
        (Link(LOOP, "os.path.exists(path)", place=COLLECT, does="path is '/d/x.lock'"),),
        ": it goes on while `os.path.exists(path)` (train.py:31), and path is '/d/x.lock'",
        "find out which process should remove the file for which train.py:31 waits",
    ),
    "a file server": (
        (Link(MOUNT, "/d/7.pt", does="nfs4 from 10.0.0.7:/d"),),
        ": it waits for the file system of /d/7.pt (nfs4 from 10.0.0.7:/d)",
        "fix the server or disk behind /d/7.pt (nfs4 from 10.0.0.7:/d)",
    ),
    "a name server": (
        (Link(LOOKUP, "10.0.0.2:53"),),
        ": it waits for the name server 10.0.0.2:53 to look up a name",
        "check the name server 10.0.0.2:53",
    ),
    "a file lock": (
        (Link(FILE_LOCK, "/d/tiles.idx", "index.py", 88, ASLEEP),),
        ": it waits for the lock on /d/tiles.idx, which index.py (pid 88) has, which is asleep",
        "end index.py (pid 88), or let it release the lock on /d/tiles.idx",
    ),
    "another user's process": (
        (Link(FILE_LOCK, "/d/tiles.idx", None, 88),),
        ": it waits for the lock on /d/tiles.idx, which a process (pid 88) has, which is a process"
        " of another user",
        "end a process (pid 88)",
    ),
    "a server of this host": (
        (
            Link(LOCK, "self.lock", "refresher", place=REFRESH),
            Link(CONNECTION, "127.0.0.1:4455", "serve.py", 88, ASLEEP, does="ESTABLISHED"),
        ),
        ": it waits for `self.lock`, which its thread refresher has, which waits for an answer of"
        " 127.0.0.1:4455, which serve.py (pid 88) serves, which is asleep",
        "repair serve.py (pid 88), the server at 127.0.0.1:4455: it is asleep",
    ),
    "a server elsewhere": (
        (Link(CONNECTION, "10.0.0.7:443", does="ESTABLISHED"),),
        ": it waits for an answer of 10.0.0.7:443",
        "find out why 10.0.0.7:443 does not answer",
    ),
    "a server that does not answer the first word": (
        (Link(CONNECTION, "10.0.0.7:443", does="SYN_SENT"),),
        ": it connects to 10.0.0.7:443, which does not answer",
        "check that a server listens at 10.0.0.7:443",
    ),
    "a thread that it joins": (
        (Link(THREAD, "", "flusher", place=REFRESH),),
        ": it waits for its thread flusher, which is waiting on a socket in refresh (cache.py:22)",
        "see why its thread flusher does not go on: it is waiting on a socket in refresh",
    ),
    "an await": (
        (Link(TASK, "await self.full.wait()", "Task-2", place=TAKE),),
        ": it waits for its task Task-2, which stands at `await self.full.wait()` in take"
        " (shelf.py:16)",
        "find out who should end `await self.full.wait()` (shelf.py:16), and why it has not",
    ),
    "a queue that another thread uses": (
        (Link(OBJECT, "queue", "feeder", place=REFRESH, does="uses"),),
        ": it waits for the queue that its thread feeder uses, which is waiting on a socket in"
        " refresh (cache.py:22)",
        "see why its thread feeder does not go on",
    ),
    "a loop that another thread should end": (
        (
            Link(LOOP, "not done.is_set()", place=COLLECT),
            Link(OBJECT, who="indexer", place=REFRESH),
            Link(FILE_LOCK, "/d/x", "index.py", 88, Sleeper("T")),
        ),
        ": it goes on while `not done.is_set()` (train.py:31), and depends on its thread indexer,"
        " which waits for the lock on /d/x, which index.py (pid 88) has, which is stopped",
        "let index.py (pid 88) go on: kill -CONT 88",
    ),
    "a loop beside a child that has ended": (
        (
            Link(LOOP, "buf[0] == 0", place=COLLECT),
            Link(CHILD, who="draw.py", pid=88, process=Sleeper("Z"), does="signal 9"),
        ),
        ": it goes on while `buf[0] == 0` (train.py:31), and has a child, draw.py (pid 88), that"
        " ended with signal 9",
        "find out why draw.py (pid 88) ended with signal 9",
    ),
    "a worker of a pool that has been replaced": (
        (Link(CHILD, who="its worker", pid=88, does=REPLACES),),
        ": its worker (pid 88) has taken the place of one that ended, whose task is lost",
        "find out what ended a worker of that pool (out of memory?)",
    ),
    "a queue whose items are not marked as done": (
        (Link(OBJECT, "queue", nobody=True, does=UNDONE),),
        ": it waits for items of a queue that were taken, and never marked as done",
        "call task_done for each item that get returns",
    ),
    "a connection that its server has not accepted": (
        (Link(CONNECTION, "127.0.0.1:80", "serve.py", 88, ASLEEP, does=BACKLOG),),
        ": it waits for an answer of 127.0.0.1:80, where serve.py (pid 88) listens and has not"
        " accepted the connection, which is asleep",
        "find out why serve.py (pid 88) does not accept at 127.0.0.1:80",
    ),
    "the standard input of its parent": (
        (
            Link(CHILD, who="gzip", pid=88, process=ASLEEP),
            Link(PIPE, does=INHERITED, nobody=True),
        ),
        ": gzip (pid 88) reads its standard input, which is that of its parent, and nothing comes",
        "give that process its input",
    ),
    "a pool whose threads wait for each other": (
        (Link(OBJECT, "future", nobody=True, does=STARVED),),
        ": it waits for a future, and all threads of that pool wait for futures too",
        "let no task of a pool wait for another task of the same pool",
    ),
    "a pool whose connections are in use": (
        (Link(OBJECT, "connection", nobody=True, does=TAKEN),),
        ": it waits for a free connection of a pool, and all are in use",
        "give each connection back",
    ),
    "workers that end as they start": (
        (Link(CHILD, who="its worker", pid=88, does=ENDS_AGAIN),),
        ": its worker (pid 88) has taken the place of one that ended: each worker ends right"
        " after its start",
        "read what the workers of that pool print",
    ),
    "the call in which a thread of a server waits": (
        (
            Link(CONNECTION, "127.0.0.1:80", "serve.py", 88, ASLEEP, COLLECT),
            Link(OBJECT, "self.loaded.wait()", place=COLLECT, does=CALL),
        ),
        ": it waits for an answer of 127.0.0.1:80, which serve.py (pid 88) serves, which waits in"
        " `self.loaded.wait()`",
        "find out which thread should end `self.loaded.wait()` (train.py:31)",
    ),
    "a loop that a clock ends": (
        (Link(LOOP, "time.time() < until", place=COLLECT, does=f"that {TIMED}"),),
        ": it goes on while `time.time() < until` (train.py:31), and that has a time limit",
        "let the loop at train.py:31 end, or give it a shorter time limit",
    ),
    "a loop that goes on": (
        (Link(LOOP, "left > 0", place=COLLECT, does=f"left is 7, and {CHANGES}"),),
        ": it goes on while `left > 0` (train.py:31), and left is 7, and that changes",
        "let the loop at train.py:31 end, or do this work on all ranks",
    ),
    "a loop that nothing ends": (
        (Link(LOOP, ENDLESS, place=COLLECT),),
        ": it goes on while `True` (train.py:31)",
        "make the loop at train.py:31 end: nothing in it leaves it",
    ),
    "a child at the other end of a socket without a name": (
        (Link(CONNECTION, who="env.py", pid=88, process=ASLEEP, does="ESTABLISHED"),),
        ": it waits for an answer on a socket, whose other end env.py (pid 88) has, which is"
        " asleep",
        "repair env.py (pid 88): it is asleep",
    ),
    "a server that accepts nobody": (
        (Link(CONNECTION, "127.0.0.1:80", "serve.py", 88, ASLEEP, does="SYN_SENT"),),
        ": it connects to 127.0.0.1:80, where serve.py (pid 88) does not accept it, which is"
        " asleep",
        "repair serve.py (pid 88): it listens at 127.0.0.1:80 and accepts nobody (it is asleep)",
    ),
    "threads that wait for each other": (
        (
            Link(THREAD, who="saver", place=REFRESH),
            Link(LOCK, "self.lock", "MainThread", place=COLLECT, circle=True),
        ),
        ": it waits for its thread saver, which waits for `self.lock`, which its main thread has in"
        " collect (train.py:31): a circle",
        "they wait for each other: release that lock before you wait for the thread",
    ),
    "an object for which the only thread waits": (
        (Link(OBJECT, "condition", nobody=True, does=ALONE),),
        ": it waits for the condition, and no other thread of it runs code of the program",
        "find out why the thread that should notify the condition has ended or was not started",
    ),
    "a statement that fails again and again": (
        (Link(RETRY, "s.connect(where)", REFUSED, place=COLLECT, does="port is 9"),),
        ": it tries `s.connect(where)` again and again (train.py:31), and port is 9",
        "start the server that should listen there, or correct the address (train.py:31)",
    ),
    "another one": (
        (Link(RETRY, "db.execute(text)", "OperationalError", place=COLLECT),),
        ": it tries `db.execute(text)` again and again (train.py:31)",
        "repair the cause of OperationalError (train.py:31)",
    ),
    "a child that has ended well": (
        (Link(CHILD, who="part.py", pid=88, process=Sleeper("Z"), does="exit code 0"),),
        ": part.py (pid 88) ended with exit code 0",
        "find out why part.py (pid 88) ended with exit code 0 before this wait is over",
    ),
    "a loop": (
        (Link(LOOP, "len(seen) < need", place=COLLECT, does="len(seen) is 3, need is 4"),),
        ": it goes on while `len(seen) < need` (train.py:31), and len(seen) is 3, need is 4",
        "find out what should make `len(seen) < need` false",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_chain_is_told_to_its_end_with_the_next_step(case):
    links, clause, step = CASES[case]
    rank = waiting(*links)

    assert chain_clause(rank) == clause
    assert chain_step(rank).startswith(step)
    assert chain_lines(rank)[0].startswith("rank 2 ")
    assert len(chain_lines(rank)) >= len(links)


def test_the_exception_of_a_library_is_told_by_what_it_says():
    tries = Link(RETRY, "psycopg.connect(at)", "OperationalError", place=COLLECT)
    tried = Handling("OperationalError", "port 5432 failed: Connection refused")
    rank = replace(builders.healthy_rank(2), reported={"chain": (tries,), "handling": tried})

    assert chain_step(rank).startswith("start the server that should listen there")


def test_a_thread_alone_that_claims_a_circle_says_nothing_more():
    """A record of a strange agent."""
    end = replace(builders.healthy_rank(0), reported={"chain": (Link(ITSELF, circle=True),)})
    rank = waiting(Link(CONNECTION, "10.0.0.1:80", "serve.py", 7, does="ESTABLISHED", rank=0))

    assert chain_lines(rank, end)[-1] == "  └ which waits for rank 2"


def test_the_thread_that_should_answer_and_the_lock_of_its_main_thread_close_a_circle():
    desk = Link(ITSELF, who="desk", place=TAKE)
    lock = Link(LOCK, "self.guard", "MainThread", place=COLLECT, circle=True)
    end = replace(builders.healthy_rank(0), reported={"chain": (desk, lock)})
    rank = waiting(Link(CONNECTION, "desk.sock", "serve.py", 7, does="ESTABLISHED", rank=0))

    assert chain_lines(rank, end)[1:] == [
        "  └ where its thread desk waits for `self.guard`, which its main thread has in collect"
        " (train.py:31)",
        "    └ which waits for rank 2: a circle",
    ]
    assert chain_step(rank, end).startswith("they wait for each other: release that lock")


def test_without_a_chain_nothing_is_said():
    assert chain_clause(waiting()) == ""
    assert chain_lines(waiting()) == []
    assert chain_step(waiting()) is None


def test_the_thread_of_another_rank_that_should_answer_is_told():
    serve = StackFrame("do_GET", "/home/ada/serve.py", 11)
    train = StackFrame("main", "/home/ada/serve.py", 32)
    threads = ThreadStack((train,), "MainThread", main=True), ThreadStack((serve,), "handler")
    server = replace(
        builders.healthy_rank(0), dump={"stacks": Stacks("auto", 0, 7, 1, "agent", threads)}
    )
    rank = waiting(Link(CONNECTION, "10.0.0.1:80", "serve.py", 7, does="ESTABLISHED", rank=0))

    assert chain_step(rank, server) == (
        "see why that thread of rank 0 does not answer: do_GET serve.py:11; rank 0 itself waits for"
        " rank 2"
    )


def test_a_link_of_a_kind_that_only_a_newer_agent_knows_is_told_by_its_name():
    assert chain_clause(waiting(Link("semaphore", "/jobs", "keeper", 88))).startswith(
        ": it waits for /jobs, which keeper (pid 88) has"
    )
