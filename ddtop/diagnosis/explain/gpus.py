"""Pages of the findings about GPUs."""

from __future__ import annotations

from ddtop.diagnosis.explain.page import Explanation
from ddtop.diagnosis.kinds import Kind

PAGES = (
    Explanation(
        kind=Kind.GPU_UNAVAILABLE,
        severity="critical",
        brief="a rank could not use its GPU",
        meaning=(
            "CUDA refused the GPU to the rank: another process holds it, its memory is in use, or"
            " no GPU has that number. The rank fails in its first lines, and the others wait for it"
            " until the timeout."
        ),
        found=(
            (
                "The rank's exception says so (busy or unavailable, invalid device ordinal, no CUDA"
                " GPUs, out of memory)."
            ),
            (
                "The driver's list says who holds the GPU and which GPUs are free. Out of memory "
                "counts only where others hold {gpu_foreign_ratio} of the GPU or more, or another "
                "rank is on it before the first iteration."
            ),
        ),
        steps=(
            "Who holds which GPU of this host, and which are free?\nddtop gpus",
            "A process of your last run is left: end it.\nkill PID",
            "Start on free ones:\nCUDA_VISIBLE_DEVICES=2,3 torchrun --nproc-per-node 2 train.py",
            "Exclusive mode lets one process in only:\nnvidia-smi -q -d COMPUTE",
        ),
        before=("torch.cuda.set_device(rank)              # the number in the whole job",),
        after=('torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',),
    ),
    Explanation(
        kind=Kind.GPU_BUSY,
        severity="warning",
        brief="processes outside the job use a rank's GPU",
        meaning=(
            "A process that is no part of the job computes or holds memory on the GPU of a rank."
            " The two take turns, so the rank is slow in every step and the others wait for it. The"
            " memory is missing too."
        ),
        found=(
            (
                "For {gpu_foreign_s} the driver lists a process that is no rank's nor a child of "
                "one, nor started by the same launcher, with {gpu_foreign_ratio} of the memory or "
                "more. The server of NVIDIA's MPS does not count."
            ),
        ),
        steps=(
            "Who is it, since when?\nps -o user,pid,ppid,lstart,args -p PID",
            "A leftover of an older run (its parent has ended): end it.\nkill PID",
            "It is somebody else's: take another GPU.\nddtop gpus",
        ),
    ),
    Explanation(
        kind=Kind.GPU_SHARED,
        severity="warning; critical where NCCL refuses it",
        brief="two ranks of the job are on one GPU",
        meaning=(
            "Each rank should have a GPU of its own. Two ranks on one GPU share its time and its "
            'memory while another GPU may be idle; NCCL refuses such a group ("Duplicate GPU '
            'detected").'
        ),
        found=(
            (
                "Torch in both ranks, or the driver's list of processes, names the same GPU. Two"
                " MIG instances are two GPUs. Where NVIDIA's MPS serves the GPU, sharing is"
                " intended."
            ),
        ),
        steps=(
            "Does the program choose by LOCAL_RANK, before its first tensor?",
            "Does the launcher start more ranks than the host has GPUs?\nnvidia-smi -L",
            (
                "Intended (a test on one GPU)? Limit each rank's part:\npython -c 'import torch;"
                " help(torch.cuda.set_per_process_memory_fraction)'"
            ),
        ),
        before=('model.to("cuda")                         # every rank: GPU 0',),
        after=('torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))', 'model.to("cuda")'),
    ),
    Explanation(
        kind=Kind.GPU_MEMORY_LOW,
        severity="warning",
        brief="a GPU's memory is nearly full, and allocations fail",
        meaning=(
            "Torch keeps memory that it once had, so a full GPU alone is normal. Here allocations"
            " already had to be retried, which costs time in every step, or others hold a part of"
            " the memory. The next larger batch will run out of memory."
        ),
        found=(
            (
                "{gpu_memory_low_ratio} of the GPU's memory or less is left, and within four times "
                "{gpu_mean_s} torch had to give memory back to get some, or failed, {gpu_retries} "
                "times; or others hold {gpu_foreign_ratio} or more."
            ),
            "Reserved and not allocated beyond {gpu_spare_ratio} is fragmentation.",
        ),
        steps=(
            "Fragmentation:\nexport PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            (
                "Several processes are on the GPU: give each its"
                " part.\ntorch.cuda.set_per_process_memory_fraction(0.4)"
            ),
            "Otherwise use less: smaller batch, activation checkpointing, sharded optimizer.",
            "What uses it?\ntorch.cuda.memory_summary()",
        ),
    ),
    Explanation(
        kind=Kind.GPU_THROTTLED,
        severity="warning",
        brief="a GPU runs at lower clocks than the others of the job",
        meaning=(
            "Heat, power or the hardware's own protection lowers the clocks of this GPU. It"
            " computes more slowly than the others, and they wait for it in every step."
        ),
        found=(
            (
                "The driver names such a reason at every look for {gpu_throttled_s}, and the SM"
                " clock is below {gpu_slow_ratio} of that of the job's other GPUs of its kind (of"
                " its own maximum, where it is the only one; then a power cap is no reason). A GPU"
                " at its power cap is compared with those that draw {gpu_load_ratio} of its power:"
                " others may run faster because they wait. An idle GPU is not judged."
            ),
            "Where others wait for it, the finding is straggler, with the clock as its cause.",
        ),
        steps=(
            "What lowers the clocks?\nnvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER"
            "\namd-smi metric --power --temperature --clock",
            "Fans, air, a hot neighbour: compare with the other GPUs of that host.",
            "Start without that host, and have it checked.",
        ),
    ),
    Explanation(
        kind=Kind.GPU_ERROR,
        severity="critical; warning where the GPU continues",
        brief="a GPU of the job has failed",
        meaning=(
            "The driver reports an error of the GPU: it has fallen off the bus, its memory has an "
            "uncorrectable error, or a link is down. What its ranks do then (hang in a kernel, "
            "crash) is a consequence."
        ),
        found=(
            (
                "The driver's events (Xid) while the job runs, its count of uncorrectable errors,"
                " or a GPU that no longer answers. Xids that a program itself causes (a bad"
                " address, an assert) are not counted: see the rank's exception."
            ),
        ),
        steps=(
            "What does the kernel say?\ndmesg | grep -i xid",
            "Take the host out of the job, and start again from the last checkpoint.",
            "Its state, and whether it needs a reset:\nnvidia-smi -q -d ECC,ROW_REMAPPER"
            "\namd-smi metric --ecc",
        ),
    ),
)
