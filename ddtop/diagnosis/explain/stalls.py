"""Pages of the findings about ranks that something holds or slows: a signal, a disk, the loading of
data.
"""

from __future__ import annotations

from ddtop.diagnosis.explain.page import Explanation
from ddtop.diagnosis.kinds import Kind

PAGES = (
    Explanation(
        kind=Kind.RANK_STOPPED,
        severity="critical",
        brief="a rank is stopped: SIGSTOP, a debugger, a frozen cgroup",
        meaning=(
            "The process is there and nothing in it runs: SIGSTOP or Ctrl-Z stopped it, a debugger"
            " holds it, or its cgroup is frozen (docker pause, a suspended job). Its peers wait for"
            " as long as that lasts."
        ),
        found=(
            (
                "State T or t in /proc, or a frozen cgroup, for {stopped_limit_s}: a tool that"
                " takes a stack stops a process only for a moment. Nobody needs to wait for it yet."
            ),
            "Check: ps -o pid,stat,wchan:32,args -p PID",
        ),
        steps=(
            "Stopped by a signal: let it continue:\nddtop signal JOB --rank R CONT",
            (
                "Stopped again at once: it is a background job that reads from its terminal; start"
                " it with < /dev/null."
            ),
            (
                "A debugger: find it by its pid, then detach or continue there:\ngrep TracerPid"
                " /proc/PID/status"
            ),
            (
                "Frozen: docker unpause, or scontrol resume ID, or thaw the cgroup:\necho 0 >"
                " /sys/fs/cgroup/.../cgroup.freeze"
            ),
        ),
    ),
    Explanation(
        kind=Kind.IO_STALL,
        severity="critical; a warning while nobody waits for the rank",
        brief="a disk or file server does not answer a rank",
        meaning=(
            "The main thread is in uninterruptible sleep (state D), in the same call all the time,"
            " and no I/O happens: the disk or server does not answer. kill -9 has no effect until"
            " it does."
        ),
        found=(
            (
                "Every look of the relay found the same state D and wait channel, no wake-up in "
                "between, and no more than {io_working_bytes_per_s} read or written."
            ),
            (
                "For {still_limit_s} while others wait for it; for {stall_alone_limit_s} where"
                " nobody does."
            ),
            (
                "Writing a large checkpoint is often in state D too, but it wakes and writes: that"
                " is no io-stall."
            ),
        ),
        steps=(
            "The kernel names the server or disk (not responding, I/O error):\ndmesg | tail -n 30",
            "Which mount is it? Ask it from another shell, with a limit:\ntimeout 5 df FOLDER",
            "In which call it hangs (as root):\ncat /proc/PID/stack",
            "Fix that; the rank then continues by itself. If nothing helps, restart the host.",
            (
                "For the next time: copy the data to a local disk before training; save there, and"
                " move the file in the background."
            ),
        ),
    ),
    Explanation(
        kind=Kind.LOADER_STUCK,
        severity="critical; a warning while nobody waits for the rank",
        brief="the worker of the next batch makes no progress",
        meaning=(
            "The main thread waits for its next batch, and the worker process that must deliver it"
            " is dead, stopped, or blocked in a lock or a call that does not return. The rank"
            " itself can do nothing; its peers wait for it."
        ),
        found=(
            (
                "The iterator says which worker must deliver the batch, or has not continued when"
                " an epoch begins. For {still_limit_s} that worker and its children used no CPU,"
                " did no I/O and did not wake; or it is gone, or stopped for {stopped_limit_s}."
            ),
            (
                "Nobody waits for the rank yet: a warning after {stall_alone_limit_s}; critical"
                " where all workers of all ranks are in locks."
            ),
            "Slow workers, and datasets read by the rank itself, are not-in-collective.",
        ),
        steps=(
            "Where the worker is (spawned ones need py-spy):\nddtop stacks JOB --rank R",
            (
                "A lock: fork copied it while another thread of the rank held it (OpenCV, OpenMP, "
                "tokenizers, logging). Start the workers by spawn, as below, or switch threads off "
                "before: cv2.setNumThreads(0), TOKENIZERS_PARALLELISM=false."
            ),
            (
                "Stopped: kill -CONT PID. Dead: the out-of-memory killer?\ndmesg | grep -i 'killed"
                " process'"
            ),
            "A server or file that does not answer: give the dataset a timeout.",
        ),
        before=("DataLoader(data, num_workers=8)            # fork copies held locks",),
        after=('DataLoader(data, num_workers=8, multiprocessing_context="spawn")',),
    ),
    Explanation(
        kind=Kind.INPUT_BOUND,
        severity="warning",
        brief="the step waits for the DataLoader for much of its time",
        meaning=(
            "The job trains, but at every step the next batch is not ready yet: loading sets the "
            "speed, and the model is idle meanwhile. A faster GPU would change nothing."
        ),
        found=(
            (
                "Waiting inside the DataLoader took {input_bound_ratio} of the time or more, in"
                " every quarter of the last {window_s} (an epoch's first batch is no evidence),"
                " over {input_bound_steps} iterations or more."
            ),
            (
                "At most half of its queue was filled: a rank does not wait for batches that are"
                " ready."
            ),
            (
                "Where the job has recovered from it by itself before, it is an info up to"
                " {input_bound_again_factor} times as long as then, at most"
                " {input_bound_again_most_s}."
            ),
        ),
        steps=(
            (
                "Raise num_workers, up to the cores that each rank has; more of them make it"
                " slower:\nnproc"
            ),
            "Keep the workers between epochs: persistent_workers=True.",
            "See what a worker does with its time:\npy-spy top --pid WORKER",
            "Decode, resize or tokenise once and store that; pack many small files into few.",
            (
                "A busy file server shows as workers in state D:\nps -o pid,stat,wchan:32,args"
                " --ppid PID"
            ),
        ),
        before=("DataLoader(data, batch_size=64)           # num_workers=0: the rank loads",),
        after=(
            "DataLoader(data, batch_size=64, num_workers=8, prefetch_factor=4,",
            "           persistent_workers=True, pin_memory=True)",
        ),
    ),
)
