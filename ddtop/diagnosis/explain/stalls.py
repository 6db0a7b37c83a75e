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
            "The process is alive, but nothing in it runs: SIGSTOP or Ctrl-Z stopped it, a"
            " debugger holds it, or its cgroup is frozen (docker pause, a suspended job). Its"
            " peers wait until it continues."
        ),
        found=(
            (
                "The process has been in state T or t in /proc, or its cgroup has been frozen, for"
                " {stopped_limit_s}. ddtop waits that long because tools that take stacks also"
                " stop a process for a moment. The finding appears even if no rank waits yet."
            ),
            "Check: ps -o pid,stat,wchan:32,args -p PID",
        ),
        steps=(
            "Stopped by a signal? Let it continue:\nddtop signal JOB --rank R CONT",
            (
                "If it stops again at once, it is a background job that reads from its terminal."
                " Start it with < /dev/null."
            ),
            (
                "Held by a debugger? Find the debugger by its pid, then detach it or continue"
                " there:\ngrep TracerPid /proc/PID/status"
            ),
            (
                "Frozen? Use docker unpause or scontrol resume ID, or thaw the cgroup:\necho 0 >"
                " /sys/fs/cgroup/.../cgroup.freeze"
            ),
        ),
    ),
    Explanation(
        kind=Kind.IO_STALL,
        severity="critical; a warning while no rank waits for it",
        brief="a disk or file server does not answer a rank",
        meaning=(
            "The main thread stays in uninterruptible sleep (state D), in the same call, and no"
            " I/O happens. The disk or file server does not answer. Until it answers, kill -9 has"
            " no effect."
        ),
        found=(
            (
                "Every sample of the relay showed state D and the same wait channel, no wake-up in"
                " between, and at most {io_working_bytes_per_s} read or written."
            ),
            (
                "This must last for {io-stall.wait_s} if others wait for the rank, and otherwise"
                " for {stall_alone_limit_s}."
            ),
            (
                "A rank that writes a large checkpoint is often in state D too, but it wakes up"
                " and writes, so that is not an io-stall."
            ),
        ),
        steps=(
            (
                "The kernel log names the server or disk (not responding, I/O error):\ndmesg |"
                " tail -n 30"
            ),
            "Test the mount from another shell, with a time limit:\ntimeout 5 df FOLDER",
            "See which call it hangs in (as root):\ncat /proc/PID/stack",
            (
                "Fix the server or disk. The rank then continues by itself. If nothing helps,"
                " restart the host."
            ),
            (
                "For the next run: copy the data to a local disk before training. Save checkpoints"
                " there too, and move them in the background."
            ),
        ),
        no_demo="it takes a disk or a file server that does not answer",
    ),
    Explanation(
        kind=Kind.LOADER_STUCK,
        severity="critical; a warning while no rank waits for it",
        brief="the worker that owes the next batch makes no progress",
        meaning=(
            "The main thread waits for its next batch. The worker process that must deliver it is"
            " dead, stopped, or blocked in a lock or a call that does not return. The rank itself"
            " can do nothing, and its peers wait for it."
        ),
        found=(
            (
                "The DataLoader's iterator says which worker must deliver the next batch, or that"
                " the workers have not started the new epoch. For {loader-stuck.wait_s} that worker"
                " and its children used no CPU, did no I/O and did not wake up. Or the worker is"
                " gone, or has been stopped for {stopped_limit_s}."
            ),
            (
                "If no rank waits for it yet, it is a warning after {stall_alone_limit_s}. It is"
                " critical if all workers of all ranks are blocked in locks."
            ),
            (
                "For slow workers, and for datasets that the rank reads itself, the finding is"
                " not-in-collective."
            ),
        ),
        steps=(
            "See where the worker is (spawned workers need py-spy):\nddtop stacks JOB --rank R",
            (
                "Blocked in a lock: fork copied the lock while another thread of the rank held it"
                " (OpenCV, OpenMP, tokenizers, logging). Start the workers by spawn, as below, or"
                " switch off threads before the fork: cv2.setNumThreads(0),"
                " TOKENIZERS_PARALLELISM=false."
            ),
            "A collective in the dataset: remove it. A worker is not a rank.",
            (
                "Stopped: kill -CONT PID. Dead: check for the out-of-memory killer:\ndmesg | grep"
                " -i 'killed process'"
            ),
            "A server or file that does not answer: use a timeout in the dataset.",
        ),
        before=("DataLoader(data, num_workers=8)            # fork copies held locks",),
        after=('DataLoader(data, num_workers=8, multiprocessing_context="spawn")',),
    ),
    Explanation(
        kind=Kind.INPUT_BOUND,
        severity="warning",
        brief="much of each step is spent waiting for the DataLoader",
        meaning=(
            "The job trains, but in every step the next batch is not ready yet. Loading sets the "
            "speed, and the model is idle meanwhile. A faster GPU would change nothing."
        ),
        found=(
            (
                "The rank waited for the DataLoader for at least {input_bound_ratio} of the time,"
                " in every quarter of the last {window_s}, over at least {input-bound.steps}"
                " iterations. The first batch of an epoch does not count."
            ),
            (
                "At most half of the loader's queue was filled. A fuller queue would mean that the"
                " rank did not wait for data."
            ),
            (
                "If the job has recovered from this by itself before, the finding is an info for"
                " up to {judge.input_bound_again_factor} times as long as it took then, at most"
                " {judge.input_bound_again_most_s}."
            ),
        ),
        steps=(
            (
                "Raise num_workers, up to the number of cores per rank. More workers than that"
                " make it slower:\nnproc"
            ),
            "Keep the workers between epochs: persistent_workers=True.",
            "See where a worker spends its time:\npy-spy top --pid WORKER",
            (
                "Decode, resize or tokenise the data once and store the result. Pack many small"
                " files into a few large ones."
            ),
            (
                "Workers in state D point to a busy file server:\nps -o pid,stat,wchan:32,args"
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
        severity="critical; a warning while no rank waits; info while its collectives still"
        " complete",
        brief="a whole host has stopped reporting",
        meaning=(
            "The relay of a host and all of its ranks stopped reporting at the same time, while"
            " the hub and other hosts still report. The host is down or hangs, or its network is"
            " cut. Its ranks are `lost`: their last reports are old, and no other finding uses"
            " them."
        ),
        found=(
            (
                "Nothing has arrived from that host for {host_lost_s}, on the hub's clock. If only"
                " the relay had died, a new one would have replaced it by then. While the hub"
                " itself does not report, no host counts as lost. A host is not lost if all its"
                " ranks had ended."
            ),
            (
                "It is critical if ranks of other hosts wait for its ranks, and a warning if none"
                " waits and the others make progress."
            ),
            (
                "It is an info if a collective with its ranks has completed since then. The ranks "
                "are alive, and only ddtop's own connection is cut."
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
                " without that host, or let torchrun do that (--nnodes=MIN:MAX --max-restarts)."
            ),
            (
                "If only ddtop's connection is cut, check its address and port on that host:\nddtop"
                " doctor"
            ),
        ),
        no_demo="it takes two hosts, and a network that is cut between them",
    ),
)
