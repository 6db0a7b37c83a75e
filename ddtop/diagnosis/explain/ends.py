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
                "A hook in the rank records the exception with its time and source line. The relay"
                " watches the process and reads its exit code."
            ),
            (
                "The finding names the rank that failed first. A rank whose failure looks like a"
                " consequence (connection closed, SIGTERM from the launcher) is named only if there"
                " is no other."
            ),
            (
                "A process that is still alive after its exception counts too, because its main"
                " thread has ended."
            ),
            (
                "A rank that leaves within {save.ends_s} after a torch.save that failed is named"
                " with that file."
            ),
        ),
        steps=(
            (
                "Fix the exception at the line in the sentence. The whole traceback is on that "
                "rank's stderr:\ntorchrun --log-dir logs --tee 3 ..."
            ),
            (
                "An exit code without an exception: look for sys.exit, os._exit, or a library that"
                " catches, prints and exits (hydra.main)."
            ),
            "If only this rank's data causes it, run its shard alone, in one process.",
            "If the process does not end, a non-daemon thread keeps it alive, as below.",
        ),
        before=("threading.Thread(target=upload_logs).start()",),
        after=("threading.Thread(target=upload_logs, daemon=True).start()",),
    ),
    Explanation(
        kind=Kind.RANK_KILLED,
        severity="critical",
        brief="a signal ended a rank: out of memory, a crash, a kill",
        meaning=(
            "A signal ended the rank, or the rank has ended in an unknown way. It was the first to"
            " end, and the other failures followed from that. If its child processes still live,"
            " they can keep its sockets open, and then its peers see no disconnect."
        ),
        found=(
            (
                "The relay watches each process through a pidfd and reads how it ended. ddtop says"
                ' "out of memory" if the cgroup has counted a kill or the kernel\'s log names the'
                " pid."
            ),
            (
                "After a single SIGTERM or SIGINT ddtop waits for {together_s}: if it reaches all "
                "ranks, that is `cancelled`."
            ),
            (
                "Also before init_process_group: if a signal ended a child of the ranks' parent,"
                " and no living process can become the missing rank, that child was this rank."
            ),
        ),
        steps=(
            (
                "SIGKILL: the out-of-memory killer, the scheduler, or a person:\ndmesg | grep -i"
                " 'killed process'; sacct -j ID"
            ),
            "Out of memory: fewer workers, smaller batches, a higher limit.",
            "SIGBUS: most often a full /dev/shm (docker run --shm-size):\ndf -h /dev/shm",
            "SIGABRT: the reason is on its stderr; gloo aborts when peers pass different sizes.",
            (
                "SIGSEGV: a crash in native code; to print the source line:\nPYTHONFAULTHANDLER=1"
                " torchrun ..."
            ),
            "End orphaned child processes; the finding lists their pids.",
        ),
    ),
    Explanation(
        kind=Kind.HELPER_CRASHED,
        severity="critical",
        brief="a process failed that ended or had started the ranks",
        meaning=(
            "A process that is not a rank (a parameter server, a logger, an evaluator), or the"
            " program that started the ranks, failed. mp.spawn ends all its children when one of"
            " them fails, so the SIGTERM of the ranks is a consequence, not a cancellation. Or all"
            " ranks finished, and the program that started them failed afterwards."
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
            "There is no such finding if a rank failed for its own reason.",
        ),
        steps=(
            "Fix the exception at the line in the sentence.",
            "A signal: see who sent it:\ndmesg | grep -i 'killed process'",
            "An exit code without an exception: see what that process printed.",
        ),
    ),
    Explanation(
        kind=Kind.CANCELLED,
        severity="info; a warning if there was a critical finding until then",
        brief="all ranks were ended together, from outside",
        meaning=(
            "One action ended all ranks: Ctrl-C, scancel, a time limit, preemption. Nothing is"
            " wrong with the program, unless there was a critical finding in the"
            " {judge.cancelled_because_s} before: the finding then repeats it after `Until then`. A"
            " hang before any other end is listed as a separate finding, which begins with `until`."
        ),
        found=(
            (
                "SIGTERM, SIGINT, SIGHUP or KeyboardInterrupt ended every rank that did not finish,"
                " all within {together_s}."
            ),
            (
                "Signals must end the first two ranks within {ending.cancel_gap_s}. A launcher that"
                " cleans up after a dead rank takes longer, because it polls; in that case the"
                " finding is about the first dead rank."
            ),
            (
                "Open MPI ends by SIGKILL what handles SIGTERM for longer than a second: ranks that"
                " SIGKILL ends together, or after the SIGTERM of others, were cancelled."
            ),
        ),
        steps=(
            "If you ended the job, there is nothing to fix.",
            (
                "Check with the scheduler whether it was a time limit or preemption:\nsacct -j ID"
                " -o JobID,State,Elapsed,Timelimit"
            ),
            (
                "For the next time: write checkpoints often, or have the scheduler warn the"
                " job:\n#SBATCH --signal=USR1@300"
            ),
        ),
    ),
)
