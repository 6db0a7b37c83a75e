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
            "CUDA did not give the GPU to the rank: another process holds it, its memory is in"
            " use, or no GPU has that number. The rank fails when it starts, and the others wait"
            " for it until the timeout."
        ),
        found=(
            (
                "ddtop reads it from the rank's exception (busy or unavailable, invalid device"
                " ordinal, no CUDA GPUs, out of memory)."
            ),
            (
                "The driver lists which processes hold the GPU and which GPUs are free. Out of"
                " memory counts only if other processes hold at least {gpu_foreign_ratio} of the"
                " GPU's memory, or if another rank uses the GPU before the first iteration."
            ),
        ),
        steps=(
            "Which processes use the GPUs of this host, and which GPUs are free?\nddtop gpus",
            "If a process of your last run is still there, end it:\nkill PID",
            "Start on free GPUs:\nCUDA_VISIBLE_DEVICES=2,3 torchrun --nproc-per-node 2 train.py",
            "Exclusive mode allows only one process on a GPU:\nnvidia-smi -q -d COMPUTE",
        ),
        before=("torch.cuda.set_device(rank)              # the number in the whole job",),
        after=('torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',),
        no_demo="it takes a GPU that somebody else holds",
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
                "For {gpu.foreign_s} the driver has listed a process that holds at least"
                " {gpu_foreign_ratio} of the memory. The process is not a rank or a child of a"
                " rank, and the job's launcher did not start it. The server of NVIDIA's MPS does"
                " not count."
            ),
        ),
        steps=(
            (
                "Find out whose process it is and when it started:\nps -o"
                " user,pid,ppid,lstart,args -p PID"
            ),
            "If an older run left it behind (its parent has ended), end it:\nkill PID",
            "If it belongs to someone else, use another GPU:\nddtop gpus",
        ),
        no_demo="it takes a GPU that somebody else uses",
    ),
    Explanation(
        kind=Kind.GPU_SHARED,
        severity="warning; critical if NCCL refuses it",
        brief="two ranks of the job share one GPU",
        meaning=(
            "Each rank should have its own GPU. Two ranks on one GPU share its time and its"
            ' memory, while another GPU may be idle. NCCL refuses such a group ("Duplicate GPU'
            ' detected").'
        ),
        found=(
            (
                "Torch reports the same GPU in both ranks, or the driver lists both processes on"
                " it. Two MIG instances are two GPUs. If NVIDIA's MPS serves the GPU, the sharing"
                " is intended and ddtop does not report it."
            ),
        ),
        steps=(
            "Does each rank select its GPU by LOCAL_RANK, before it creates its first tensor?",
            "Does the launcher start more ranks than the host has GPUs?\nnvidia-smi -L",
            (
                "If you want this (a test on one GPU), limit the memory of each rank:\npython -c"
                " 'import torch; help(torch.cuda.set_per_process_memory_fraction)'"
            ),
        ),
        before=('model.to("cuda")                         # every rank: GPU 0',),
        after=('torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))', 'model.to("cuda")'),
        no_demo="it takes a GPU",
    ),
    Explanation(
        kind=Kind.GPU_MEMORY_LOW,
        severity="warning",
        brief="a GPU's memory is nearly full, and allocations fail",
        meaning=(
            "Torch keeps the memory that it has allocated, so a full GPU by itself is normal. But"
            " here torch already had to retry allocations, which costs time in every step, or"
            " other processes hold part of the memory. The next larger batch may run out of"
            " memory."
        ),
        found=(
            (
                "At most {gpu-memory-low.memory_low_ratio} of the GPU's memory is left. In"
                " addition, within four times {gpu_mean_s} torch had to free its cache to get"
                " memory {gpu-memory-low.retries} times, or an allocation failed; or other"
                " processes hold at least {gpu_foreign_ratio}."
            ),
            (
                "If more than {gpu-memory-low.spare_ratio} is reserved but not allocated, the"
                " memory is fragmented."
            ),
        ),
        steps=(
            "Against fragmentation:\nexport PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            (
                "If several processes use the GPU, limit the share of each one:\n"
                "torch.cuda.set_per_process_memory_fraction(0.4)"
            ),
            (
                "Otherwise use less memory: a smaller batch, activation checkpointing, a sharded"
                " optimizer."
            ),
            "What uses the memory?\ntorch.cuda.memory_summary()",
        ),
        no_demo="it takes a GPU",
    ),
    Explanation(
        kind=Kind.GPU_THROTTLED,
        severity="warning",
        brief="a GPU runs at lower clocks than the job's other GPUs",
        meaning=(
            "Heat, power or the hardware's own protection lowers the clocks of this GPU. It"
            " computes more slowly than the others, and they wait for it in every step."
        ),
        found=(
            (
                "The driver reports such a reason in every sample for {gpu_throttled_s}, and the SM"
                " clock is below {gpu_slow_ratio} of the clock of the job's other GPUs of the same"
                " model. If the job has no other GPU of that model, ddtop compares the GPU with its"
                " own maximum, and a power cap does not count as a reason. A GPU at its power cap"
                " is compared only with GPUs that draw at least {gpu-throttled.gpu_load_ratio} of"
                " its power, because the others may run faster while they wait. Idle GPUs are not"
                " judged."
            ),
            (
                "If other ranks wait for this GPU, the finding is straggler, and the clock is its"
                " cause."
            ),
        ),
        steps=(
            "What lowers the clocks?\nnvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER"
            "\namd-smi metric --power --temperature --clock",
            "Check fans, air flow and hot neighbours. Compare it with the other GPUs of that host.",
            "Start without that host, and have it checked.",
        ),
        no_demo="it takes a GPU that is too hot, or out of power",
    ),
    Explanation(
        kind=Kind.GPU_ERROR,
        severity="critical; a warning while the GPU still works",
        brief="a GPU of the job has failed",
        meaning=(
            "The driver reports that the GPU has an error: it has fallen off the bus, its memory"
            " has an uncorrectable error, or a link is down. If its ranks then hang in a kernel or"
            " crash, that is a consequence."
        ),
        found=(
            (
                "The driver reports an event (Xid) while the job runs, it counts uncorrectable"
                " errors, or the GPU no longer answers. Xids that the program itself causes (a bad"
                " address, an assert) do not count; the rank's exception explains those."
            ),
        ),
        steps=(
            "What does the kernel say?\ndmesg | grep -i xid",
            "Take the host out of the job and restart from the last checkpoint.",
            "Check the GPU's state, and whether it needs a reset:\nnvidia-smi -q -d "
            "ECC,ROW_REMAPPER\namd-smi metric --ecc",
        ),
        no_demo="it takes a GPU that fails",
    ),
)
