"""Pages of the findings about ranks that have ended."""

from __future__ import annotations

from ddtop.diagnosis.explain.page import Explanation

PAGES = (
    Explanation(
        kind="rank-crashed",
        severity="critical",
        brief="an exception or exit code ended a rank, first of all",
        meaning="An exception that nothing caught ended the rank, or it left with an exit code other than 0. It was the first to "
        "go: connection errors and SIGTERM on the others came later and because of it.",
        found=(
            "A hook in the rank sees the exception, with its time and line; the relay watches the process and reads its exit code.",
            "The first in time is named, but never one that fails as ranks do when another has gone (connection closed, SIGTERM "
            "of the launcher) while one that does not is there.",
            "A process that lives on after its exception counts: its main thread will not come back.",
        ),
        steps=(
            "Mend the exception at the line in the sentence. The whole traceback is on that rank's stderr:\n"
            "torchrun --log-dir logs --tee 3 ...",
            "An exit code without exception: look for sys.exit, os._exit, a library that gives up.",
            "Only this rank's data does it: run its shard alone, in one process.",
            "It lingers: a thread that is no daemon keeps the process, as below.",
        ),
        before=("threading.Thread(target=upload_logs).start()",),
        after=("threading.Thread(target=upload_logs, daemon=True).start()",),
    ),
    Explanation(
        kind="rank-killed",
        severity="critical",
        brief="a signal ended a rank: out of memory, a crash, a kill",
        meaning="A signal ended the rank, or it is gone and nobody could tell how. It was the first to go; what happened to the "
        "others followed from that. Children that outlive it can hold its sockets, and then its peers see no disconnect.",
        found=(
            "The relay holds each process by a pidfd and reads how it ended. Out of memory is said where the cgroup has counted a "
            "kill or the kernel's log names the pid.",
            "One SIGTERM or SIGINT alone is looked at for {together_s}: if it reaches all ranks, that is `cancelled`.",
        ),
        steps=(
            "SIGKILL: the out-of-memory killer, the scheduler, or a person:\ndmesg | grep -i 'killed process'; sacct -j ID",
            "Out of memory: fewer workers, smaller batches, a higher limit.",
            "SIGBUS: most often a full /dev/shm (docker run --shm-size):\ndf -h /dev/shm",
            "SIGABRT: the reason is on its stderr; gloo aborts when peers bring other sizes.",
            "SIGSEGV: a crash in native code; the line is printed with\nPYTHONFAULTHANDLER=1 torchrun ...",
            "Orphans: end them, the finding has their pids.",
        ),
    ),
    Explanation(
        kind="cancelled",
        severity="info",
        brief="all ranks were ended together, from outside",
        meaning="One act ended all ranks: Ctrl-C, scancel, a time limit, preemption. Nothing is wrong with the program.",
        found=(
            "SIGTERM, SIGINT, SIGHUP or KeyboardInterrupt ended every rank that did not finish, all within {together_s}.",
            "By signal: the first two within {cancel_gap_s}. A launcher that cleans up after a death takes longer, because it "
            "polls; then the first death is the finding, not this.",
        ),
        steps=(
            "Nothing to mend, if it was you.",
            "Ask the scheduler whether it was a time limit or preemption:\nsacct -j ID -o JobID,State,Elapsed,Timelimit",
            "For the next time: write checkpoints often, or have the scheduler warn the job:\n#SBATCH --signal=USR1@300",
        ),
    ),
)
