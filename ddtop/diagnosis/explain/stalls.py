"""Pages of the findings about what holds or slows a rank, and about its host."""

from __future__ import annotations

from ddtop.diagnosis.explain.page import Explanation
from ddtop.diagnosis.kinds import Kind

# -- Pages of the findings about ranks that something holds or slows: a signal, a disk, the loading
#    of data


STALLS = (
    Explanation(
        kind=Kind.RANK_STOPPED,
        severity="critical",
        brief="a rank is stopped: SIGSTOP, a debugger, a frozen cgroup",
        meaning=(
            "The process exists, but nothing in it runs: SIGSTOP or Ctrl-Z stopped it, a debugger"
            " holds it, or its cgroup is frozen (docker pause, a suspended job). Its peers wait"
            " until it continues."
        ),
        found=(
            (
                "State T or t in /proc, or a frozen cgroup, for {stopped_limit_s}, because a tool"
                " that takes a stack also stops a process for a moment. The finding appears even if"
                " no rank waits for it yet."
            ),
            "Check: ps -o pid,stat,wchan:32,args -p PID",
        ),
        steps=(
            "Stopped by a signal: let it continue:\nddtop signal JOB --rank R CONT",
            (
                "If it stops again at once, it is a background job that reads from its terminal:"
                " start it with < /dev/null."
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
            " and no I/O happens: the disk or server does not answer. Until it answers, kill -9 has"
            " no effect."
        ),
        found=(
            (
                "Every sample of the relay showed state D and the same wait channel, no wake-up in"
                " between, and at most {io_working_bytes_per_s} read or written."
            ),
            (
                "This must last for {io-stall.wait_s} if others wait for the rank, else for"
                " {stall_alone_limit_s}."
            ),
            (
                "A rank that writes a large checkpoint is often in state D too, but it wakes up and"
                " writes, so it is not an io-stall."
            ),
        ),
        steps=(
            "The kernel names the server or disk (not responding, I/O error):\ndmesg | tail -n 30",
            "Test the mount from another shell, with a time limit:\ntimeout 5 df FOLDER",
            "See in which call it hangs (as root):\ncat /proc/PID/stack",
            "Fix that; the rank then continues by itself. If nothing helps, restart the host.",
            (
                "Next time: copy the data to a local disk before training; save there, and move the"
                " file in the background."
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
                "The DataLoader's iterator says which worker must deliver the next batch, or the"
                " workers have not started the new epoch. For {loader-stuck.wait_s} that worker and"
                " its children used no CPU, did no I/O and did not wake; or it is gone, or stopped"
                " for {stopped_limit_s}."
            ),
            (
                "If nobody waits for the rank yet, it is a warning after {stall_alone_limit_s}; it"
                " is critical if all workers of all ranks are blocked in locks."
            ),
            (
                "For slow workers, and for datasets that the rank reads itself, the finding is"
                " not-in-collective."
            ),
        ),
        steps=(
            "See where the worker is (spawned workers need py-spy):\nddtop stacks JOB --rank R",
            (
                "A lock: fork copied it while another thread of the rank held it (OpenCV, OpenMP,"
                " tokenizers, logging). Start the workers by spawn, as below, or switch off threads"
                " before the fork: cv2.setNumThreads(0), TOKENIZERS_PARALLELISM=false."
            ),
            "A collective in the dataset: take it out. A worker is not a rank.",
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
                "Waiting for the DataLoader took at least {input_bound_ratio} of the time, in every"
                " quarter of the last {window_s}, over at least {input-bound.steps} iterations. The"
                " first batch of an epoch does not count."
            ),
            ("At most half of its queue was filled; otherwise the rank would not have waited."),
            (
                "If the job has recovered from this by itself before, it is an info up to"
                " {judge.input_bound_again_factor} times as long as then, at most"
                " {judge.input_bound_again_most_s}."
            ),
        ),
        steps=(
            (
                "Raise num_workers, up to the number of cores of each rank; more workers make it"
                " slower:\nnproc"
            ),
            "Keep the workers between epochs: persistent_workers=True.",
            "See what a worker does with its time:\npy-spy top --pid WORKER",
            "Decode, resize or tokenise once and store that; pack many small files into few.",
            (
                "Workers in state D are a sign of a busy file server:\nps -o pid,stat,wchan:32,args"
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


# -- Pages of the findings about whole hosts


HOSTS = (
    Explanation(
        kind=Kind.HOST_LOST,
        severity="critical; a warning while nobody waits; info while its collectives are completed",
        brief="nothing has been received from a whole host",
        meaning=(
            "The relay of a host and all of its ranks stopped reporting at once, while the hub and"
            " others report. The host is down or hangs, or its network is cut. Its ranks are"
            " `lost`: their last reports are old, and no other finding uses them."
        ),
        found=(
            (
                "Nothing has arrived from that host for {host_lost_s}, on the hub's clock; a relay"
                " that died would have been replaced by then. While the hub itself does not report,"
                " no host is lost. A host whose ranks had all ended is not lost."
            ),
            (
                "Critical if ranks of other hosts wait for its ranks. A warning if nobody waits and"
                " others make progress."
            ),
            (
                "Info if a collective of its ranks has completed since: they are alive, and only "
                "ddtop's own connection is cut."
            ),
        ),
        steps=(
            "Is it up, and can it be reached from the hub's host?\nping HOST; ssh HOST uptime",
            (
                "What does the scheduler say about it?\nsinfo -R; scontrol show node HOST; kubectl"
                " describe node HOST"
            ),
            (
                "If it is up, look at its network link and its log:\nip -s link; dmesg -T | tail"
                " -50; ibstat"
            ),
            (
                "If it is down, the others wait until torch's timeout. End the job and start it"
                " without that host, or let torchrun do so (--nnodes=MIN:MAX --max-restarts)."
            ),
            (
                "If only ddtop's connection is cut, check its address and port on that host:\nddtop"
                " doctor"
            ),
        ),
    ),
)
