"""Pages of the findings about ranks that have ended."""

from __future__ import annotations

from ddtop.diagnosis.explain.page import Explanation
from ddtop.diagnosis.kinds import Kind

PAGES = (
    Explanation(
        kind=Kind.RANK_CRASHED,
        severity="critical",
        brief="an exception or exit code ended a rank first",
        meaning=(
            "An exception that nothing caught ended the rank, or it left with an exit code other "
            "than 0. It was the first to end: connection errors and SIGTERM on the others followed "
            "from it."
        ),
        found=(
            (
                "A hook in the rank sees the exception, with its time and line; the relay watches"
                " the process and reads its exit code."
            ),
            (
                "The first in time is named. A rank that fails as ranks do when another has gone "
                "(connection closed, SIGTERM from the launcher) is named only if there is no other."
            ),
            "A process that lives on after its exception counts: its main thread has ended.",
        ),
        steps=(
            (
                "Fix the exception at the line in the sentence. The whole traceback is on that "
                "rank's stderr:\ntorchrun --log-dir logs --tee 3 ..."
            ),
            "An exit code without exception: look for sys.exit, os._exit, a library that exits.",
            "Only this rank's data causes it: run its shard alone, in one process.",
            "It does not end: a non-daemon thread keeps the process alive, as below.",
        ),
        before=("threading.Thread(target=upload_logs).start()",),
        after=("threading.Thread(target=upload_logs, daemon=True).start()",),
    ),
    Explanation(
        kind=Kind.RANK_KILLED,
        severity="critical",
        brief="a signal ended a rank: out of memory, a crash, a kill",
        meaning=(
            "A signal ended the rank, or it is gone and nobody saw how. It was the first to end; "
            "what happened to the others followed from that. Children that outlive it can hold its "
            "sockets, and then its peers see no disconnect."
        ),
        found=(
            (
                "The relay holds each process by a pidfd and reads how it ended. ddtop says out of "
                "memory where the cgroup has counted a kill or the kernel's log names the pid."
            ),
            (
                "After a single SIGTERM or SIGINT ddtop waits for {together_s}: if it reaches all "
                "ranks, that is `cancelled`."
            ),
        ),
        steps=(
            (
                "SIGKILL: the out-of-memory killer, the scheduler, or a person:\ndmesg | grep -i"
                " 'killed process'; sacct -j ID"
            ),
            "Out of memory: fewer workers, smaller batches, a higher limit.",
            "SIGBUS: most often a full /dev/shm (docker run --shm-size):\ndf -h /dev/shm",
            "SIGABRT: the reason is on its stderr; gloo aborts when peers pass other sizes.",
            (
                "SIGSEGV: a crash in native code; the line is printed with\nPYTHONFAULTHANDLER=1"
                " torchrun ..."
            ),
            "Orphans: end them; the finding has their pids.",
        ),
    ),
    Explanation(
        kind=Kind.HELPER_CRASHED,
        severity="critical",
        brief="a process beside the ranks failed, which ended them",
        meaning=(
            "A process beside the ranks (a parameter server, a logger, an evaluator), or the"
            " program that started them, failed. mp.spawn ends all its children when one of them"
            " fails, so the ranks' SIGTERM is a consequence and no cancellation."
        ),
        found=(
            (
                "The relay watches the children of the program that started the ranks, and that"
                " program. Torchrun's and MPI's launchers end with an exit code after a"
                " cancellation too, so they are left out."
            ),
            (
                "The exception is the one that the function of mp.spawn, or of a"
                " multiprocessing.Process, raised."
            ),
            "It counts only where no rank failed for a reason of its own.",
        ),
        steps=(
            "Fix the exception at the line in the sentence.",
            "A signal: see who sent it:\ndmesg | grep -i 'killed process'",
            "An exit code without an exception: see what that process printed.",
        ),
    ),
    Explanation(
        kind=Kind.CANCELLED,
        severity="info; a warning where something critical stood until then",
        brief="all ranks were ended together, from outside",
        meaning=(
            "One action ended all ranks: Ctrl-C, scancel, a time limit, preemption. Nothing is"
            " wrong with the program, unless something critical stood in the {cancelled_because_s}"
            " before: then the finding has it behind `Until then`. Before any other end a hang"
            " that stood is listed as a finding of its own, which begins with `until`."
        ),
        found=(
            (
                "SIGTERM, SIGINT, SIGHUP or KeyboardInterrupt ended every rank that did not finish,"
                " all within {together_s}."
            ),
            (
                "By signal: the first two within {cancel_gap_s}. A launcher that cleans up after a"
                " death takes longer, because it polls; then the first death is the finding, not"
                " this."
            ),
        ),
        steps=(
            "Nothing to fix, if it was you.",
            (
                "Ask the scheduler whether it was a time limit or preemption:\nsacct -j ID -o"
                " JobID,State,Elapsed,Timelimit"
            ),
            (
                "For the next time: write checkpoints often, or have the scheduler warn the"
                " job:\n#SBATCH --signal=USR1@300"
            ),
        ),
    ),
)
