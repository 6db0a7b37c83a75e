"""A program that gets a signal. METHOD is how the receiving process is started, BEHAVIOUR is what
it does with the signal.

It begins when it reads a line on stdin, and prints "ready" and its pid when it is ready for the
signal.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

OURS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def on_signal(number, frame):
    print("handled", signal.Signals(number).name, flush=True)
    sys.exit(4)


def work(behaviour):
    if behaviour == "handled":
        for one in OURS:
            signal.signal(one, on_signal)
    elif behaviour == "blocked":
        signal.pthread_sigmask(signal.SIG_BLOCK, OURS)
    print("ready", os.getpid(), flush=True)
    while not signal.sigpending():
        time.sleep(0.05)
    print("saving, because of", sorted(one.name for one in signal.sigpending()), flush=True)
    sys.exit(3)


def main():
    method, behaviour = sys.argv[1:]
    sys.stdin.readline()
    if method == "plain":
        work(behaviour)
    elif method == "subprocess":
        code = subprocess.run(
            [sys.executable, __file__, "plain", behaviour], check=False, input="\n", text=True
        ).returncode
    elif method == "fork":
        pid = os.fork()
        if pid == 0:
            work(behaviour)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    else:
        process = multiprocessing.get_context(method).Process(target=work, args=(behaviour,))
        process.start()
        process.join()
        code = process.exitcode
    print("its exit code", code, flush=True)
    sys.exit(abs(code))


if __name__ == "__main__":
    main()
