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
            " no GPU has that number. The rank fails at its start, and the others wait for it until"
            " the timeout."
        ),
        found=(
            (
                "The rank's exception says so (busy or unavailable, invalid device ordinal, no CUDA"
                " GPUs, out of memory)."
            ),
            (
                "The driver's list says who holds the GPU and which GPUs are free. Out of memory"
                " counts only if others hold at least {gpu_foreign_ratio} of the GPU's memory, or"
                " if another rank uses the GPU before the first iteration."
            ),
        ),
        steps=(
            "Which process uses which GPU of this host, and which GPUs are free?\nddtop gpus",
            "If a process of your last run still exists, end it:\nkill PID",
            "Start on free GPUs:\nCUDA_VISIBLE_DEVICES=2,3 torchrun --nproc-per-node 2 train.py",
            "Exclusive mode allows only one process on a GPU:\nnvidia-smi -q -d COMPUTE",
        ),
        before=("torch.cuda.set_device(rank)              # the number in the whole job",),
        after=('torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',),
    ),
    Explanation(
        kind=Kind.GPU_BUSY,
        severity="warning",
        brief="processes outside the job use a rank's GPU",
        meaning=(
            "A process outside the job computes or holds memory on the GPU of a rank. The two take"
            " turns, so the rank is slow in every step and the others wait for it. The rank also"
            " has less memory."
        ),
        found=(
            (
                "For {gpu.foreign_s} the driver lists a process with at least {gpu_foreign_ratio}"
                " of the memory that is not a rank, not a child of one, and was not started by the"
                " same launcher. The server of NVIDIA's MPS does not count."
            ),
        ),
        steps=(
            "Find its user and its start time:\nps -o user,pid,ppid,lstart,args -p PID",
            "If it was left by an older run (its parent has ended), end it:\nkill PID",
            "If it belongs to somebody else, use another GPU:\nddtop gpus",
        ),
    ),
    Explanation(
        kind=Kind.GPU_SHARED,
        severity="warning; critical if NCCL refuses it",
        brief="two ranks of the job are on one GPU",
        meaning=(
            "Each rank should have its own GPU. Two ranks on one GPU share its time and its memory"
            ' while another GPU may be idle; NCCL refuses such a group ("Duplicate GPU detected").'
        ),
        found=(
            (
                "Torch in both ranks, or the driver's list of processes, names the same GPU. Two"
                " MIG instances are two GPUs. If NVIDIA's MPS serves the GPU, sharing is intended"
                " and not reported."
            ),
        ),
        steps=(
            "Does the program select its GPU by LOCAL_RANK, before its first tensor?",
            "Does the launcher start more ranks than the host has GPUs?\nnvidia-smi -L",
            (
                "If it is intended (a test on one GPU), limit the memory of each rank:\npython -c"
                " 'import torch; help(torch.cuda.set_per_process_memory_fraction)'"
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
            "Torch keeps memory that it has once allocated, so a full GPU alone is normal. Here"
            " torch already had to retry allocations, which costs time in every step, or other"
            " processes hold part of the memory. The next larger batch may run out of memory."
        ),
        found=(
            (
                "At most {gpu-memory-low.memory_low_ratio} of the GPU's memory is left. In"
                " addition, within four times {gpu_mean_s} torch {gpu-memory-low.retries} times had"
                " to free its cache to get memory, or failed; or other processes hold at least"
                " {gpu_foreign_ratio}."
            ),
            (
                "If more than {gpu-memory-low.spare_ratio} is reserved but not allocated, the"
                " memory is fragmented."
            ),
        ),
        steps=(
            "Against fragmentation:\nexport PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            (
                "If several processes use the GPU, limit the part of each:\n"
                "torch.cuda.set_per_process_memory_fraction(0.4)"
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
                "The driver reports such a reason in every sample for {gpu_throttled_s}, and the SM"
                " clock is below {gpu_slow_ratio} of the clock of the job's other GPUs of the same"
                " model. The only GPU of its model is compared with its own maximum; a power cap is"
                " then no reason. A GPU at its power cap is compared with those that draw at least"
                " {gpu-throttled.gpu_load_ratio} of its power, because others may run faster while"
                " they wait. Idle GPUs are not judged."
            ),
            "If other ranks wait for it, the finding is straggler, with the clock as the cause.",
        ),
        steps=(
            "What lowers the clocks?\nnvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER"
            "\namd-smi metric --power --temperature --clock",
            "Check fans, air flow and hot neighbours: compare with the other GPUs of that host.",
            "Start without that host, and have it checked.",
        ),
    ),
    Explanation(
        kind=Kind.GPU_ERROR,
        severity="critical; warning if the GPU continues to work",
        brief="a GPU of the job has failed",
        meaning=(
            "The driver reports an error of the GPU: it has fallen off the bus, its memory has an"
            " uncorrectable error, or a link is down. If its ranks then hang in a kernel or crash,"
            " that is a consequence."
        ),
        found=(
            (
                "The driver reports an event (Xid) while the job runs, it counts uncorrectable"
                " errors, or the GPU no longer answers. Xids that a program itself causes (a bad"
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
