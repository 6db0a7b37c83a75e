"""A program with hooks and handlers of its own: it prints which hooks it finds, and
whether its own still work.

It is a rank because of its environment, and needs no torch.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time

CASE = sys.argv[1]


def handlers() -> None:
    """Signals reach the program's own handlers, also those set before anything of ours."""
    got: list[int] = []
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGCHLD, signal.SIGALRM):
        print(number.name, signal.getsignal(number))
        signal.signal(number, lambda number, _frame: got.append(number))
        os.kill(os.getpid(), number)
    print("got", [signal.Signals(number).name for number in got])
    print("wakeup", signal.set_wakeup_fd(-1))


def terminated() -> None:
    """The program has no handler for SIGTERM, so the signal must end it as always."""
    os.kill(os.getpid(), signal.SIGTERM)


def waits() -> None:
    """`os.wait()` returns the program's own child and no other."""
    child = os.fork()
    if child == 0:
        os._exit(3)
    pid, status = os.wait()
    print("waited", pid == child, os.waitstatus_to_exitcode(status))
    try:
        os.waitpid(-1, os.WNOHANG)
        print("a child of somebody else")
    except ChildProcessError:
        print("no other child")


def forks() -> None:
    """A fork in a watched rank: the child is not the rank, ends at once, and does not affect the
    parent's agent.
    """
    for _ in range(20):
        child = os.fork()
        if child == 0:
            sys.exit(39 + len(threading.enumerate()))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), end=" ")
    print([thread.name for thread in threading.enumerate()] == ["MainThread"])


def blocks() -> None:
    """It blocks each signal and checks for it with sigpending, as preemption handlers do. No signal
    may reach another thread and end the program.
    """
    for number in sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}):
        signal.pthread_sigmask(signal.SIG_BLOCK, {number})
        os.kill(os.getpid(), number)
        print(int(number), number in signal.sigpending(), flush=True)
    print("saving checkpoint", flush=True)
    os._exit(0)


def joins() -> None:
    """It waits for every existing thread."""
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join()
    print("joined all")


def lists() -> None:
    """It ends at SIGUSR1 and prints the names of its threads."""
    signal.signal(
        signal.SIGUSR1, lambda *_: sys.exit(str([thread.name for thread in threading.enumerate()]))
    )
    print("up", flush=True)
    while True:
        time.sleep(1)


def raises() -> None:
    """The hook that the program set before still runs, and the one set after chains to what it
    found.
    """
    found = sys.excepthook

    def mine(kind: type[BaseException], error: BaseException, traceback: object) -> None:
        print("mine", kind.__name__, error)
        found(kind, error, traceback)  # type: ignore[arg-type]

    sys.excepthook = mine
    raise ValueError("bad sample 7")


def raises_in_thread() -> None:
    """An exception in a thread ends only the thread."""
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    print("goes on")


def masks() -> None:
    """Which signals are blocked, ignored and caught, as the kernel says it."""
    # With the first thread glibc catches one of its own.
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    with open("/proc/self/status") as file:
        print(
            *(line.strip() for line in file if line.startswith(("SigB", "SigI", "SigC"))), sep="\n"
        )


def exits() -> None:
    """How long the interpreter takes to exit."""
    began = time.monotonic()
    atexit.register(lambda: print(f"{(time.monotonic() - began):.3f}"))


def quiet() -> None:
    """Writes one word to each stream."""
    print("out")
    print("err", file=sys.stderr)


def reads() -> None:
    """A system call that no signal interrupted."""
    read_end, write_end = os.pipe()
    threading.Timer(1.5, lambda: os.write(write_end, b"x")).start()
    print(os.read(read_end, 1))


def stays() -> None:
    """Runs until it is ended."""
    print("up", flush=True)
    while True:
        time.sleep(1)


globals()[CASE]()
