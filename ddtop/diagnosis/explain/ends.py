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
            "An uncaught exception ended the rank, or the rank ended with an exit code other than "
            "0. It was the first to end. The connection errors and the SIGTERM on the other ranks "
            "came after it."
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
                "If a rank ends within {save.ends_s} of a failed torch.save, the finding names the"
                " file."
            ),
        ),
        steps=(
            (
                "Fix the exception at the line that the finding names. The whole traceback is on "
                "that rank's stderr:\ntorchrun --log-dir logs --tee 3 ..."
            ),
            (
                "An exit code without an exception: look for sys.exit, os._exit, or a library that"
                " catches, prints and exits (hydra.main)."
            ),
            "If only this rank's data causes the exception, run its shard alone, in one process.",
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
            " end, and the other failures followed from that. If its child processes are still"
            " alive, they can keep its sockets open, and its peers then see no disconnect."
        ),
        found=(
            (
                "The relay watches each process through a pidfd and reads how it ended. ddtop says"
                ' "out of memory" if the cgroup has counted a kill or the kernel\'s log names the'
                " pid."
            ),
            (
                "After a single SIGTERM or SIGINT ddtop waits for {together_s}. If all ranks get "
                "the signal in that time, the finding is `cancelled`."
            ),
            (
                "This also works before init_process_group. If a signal ended a child of the"
                " process that started the ranks, and no living process can become the missing"
                " rank, then that child was the missing rank."
            ),
        ),
        steps=(
            (
                "SIGKILL: it came from the out-of-memory killer, the scheduler or a person:\ndmesg"
                " | grep -i 'killed process'; sacct -j ID"
            ),
            "Out of memory: use fewer workers or smaller batches, or raise the limit.",
            "SIGBUS: usually /dev/shm is full (docker run --shm-size):\ndf -h /dev/shm",
            (
                "SIGABRT: the reason is on the rank's stderr. gloo aborts when peers pass"
                " different sizes."
            ),
            (
                "SIGSEGV: native code crashed. To print the source line:\nPYTHONFAULTHANDLER=1"
                " torchrun ..."
            ),
            "End the orphaned child processes. The finding lists their pids.",
        ),
    ),
    Explanation(
        kind=Kind.HELPER_CRASHED,
        severity="critical",
        brief="a helper or the program that started the ranks failed",
        meaning=(
            "A process that is not a rank failed (a parameter server, a logger, an evaluator), or"
            " the program that started the ranks failed. mp.spawn ends all its children when one"
            " of them fails. So the SIGTERM that the ranks got is a consequence, and nobody"
            " cancelled the job. Or all ranks finished, and the program that started them failed"
            " afterwards."
        ),
        found=(
            (
                "The relay watches the program that started the ranks, and its children. It does"
                " not judge the launchers of torchrun and MPI, because a cancelled job also makes"
                " them end with an exit code."
            ),
            (
                "The exception comes from the function that was passed to mp.spawn or"
                " multiprocessing.Process."
            ),
            "If a rank failed for a reason of its own, ddtop reports that rank instead.",
        ),
        steps=(
            "Fix the exception at the line that the finding names.",
            "If it was a signal, find out who sent it:\ndmesg | grep -i 'killed process'",
            "If there is an exit code but no exception, read what that process printed.",
        ),
        no_demo="it takes a program that starts its ranks and a helper itself",
    ),
    Explanation(
        kind=Kind.CANCELLED,
        severity="info; a warning if there was a critical finding before",
        brief="something outside the job ended all ranks together",
        meaning=(
            "One action ended all ranks: Ctrl-C, scancel, a time limit or preemption. Nothing is"
            " wrong with the program, unless there was a critical finding in the"
            " {judge.cancelled_because_s} before. In that case the sentence repeats it after `Until"
            " then`. If a job hung before it ended in another way, the hang is a separate finding"
            " that begins with `until`."
        ),
        found=(
            (
                "SIGTERM, SIGINT, SIGHUP or KeyboardInterrupt ended every unfinished rank, all"
                " within {together_s}; or one of SIGQUIT, SIGUSR1 and SIGUSR2 ended all of them."
            ),
            (
                "Signals must end the first two ranks within {ending.cancel_gap_s}, or within twice"
                " the time in which the others end. A launcher that cleans up after a dead rank"
                " mostly takes longer, because it polls. The finding is then about the first dead"
                " rank."
            ),
            (
                "Open MPI and torchrun send SIGKILL to processes that SIGTERM has not ended."
                " So if SIGKILL ends ranks together, or after SIGTERM ended others, the job was"
                " cancelled."
            ),
        ),
        steps=(
            "If you ended the job yourself, there is nothing to fix.",
            (
                "Ask the scheduler whether it was a time limit or preemption:\nsacct -j ID -o"
                " JobID,State,Elapsed,Timelimit"
            ),
            (
                "For the next run: write checkpoints often, or have the scheduler warn the job:\n"
                "#SBATCH --signal=USR1@300"
            ),
        ),
        no_demo="press Ctrl-C in the terminal of one of your own jobs to see it",
    ),
)
