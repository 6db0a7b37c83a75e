"""Pages of the findings about GPUs."""

from __future__ import annotations

from ddtop.diagnosis.explain.page import Explanation

PAGES = (
    Explanation(
        kind="gpu-unavailable",
        severity="critical",
        brief="a rank could not begin on its GPU",
        meaning="CUDA refused the rank its GPU: another process holds it, its memory is taken, or there is none of that number. The rank "
        "dies of that in its first lines, and the others wait for it until torch gives up.",
        found=(
            "The rank's exception says so (busy or unavailable, invalid device ordinal, no CUDA GPUs, out of memory).",
            "The driver's list says who holds the card and which are free. Out of memory counts only where others hold "
            "{gpu_foreign_ratio} of the card or more, or another rank is on it before the first iteration.",
        ),
        steps=(
            "Who holds which GPU of this host, and which are free?\nddtop gpus",
            "What is left of your last run: end it.\nkill PID",
            "Start on free ones:\nCUDA_VISIBLE_DEVICES=2,3 torchrun --nproc-per-node 2 train.py",
            "Exclusive mode lets one process in only:\nnvidia-smi -q -d COMPUTE",
        ),
        before=("torch.cuda.set_device(rank)              # the number in the whole job",),
        after=('torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',),
    ),
    Explanation(
        kind="gpu-busy",
        severity="warning",
        brief="others use a rank's GPU too",
        meaning="A process that is no part of the job computes or holds memory on the GPU of a rank. The two take turns, so the rank is slow "
        "at every step and the others wait for it; and the memory is gone.",
        found=(
            "For {gpu_foreign_s} the driver lists a process that is no rank's nor a child of one, nor started by the same launcher, with "
            "{gpu_foreign_ratio} of the memory or more. The server of NVIDIA's MPS is none.",
        ),
        steps=(
            "Who is it, since when?\nps -o user,pid,ppid,lstart,args -p PID",
            "A leftover of an older run (its parent has ended): end it.\nkill PID",
            "Somebody else's: take another card.\nddtop gpus",
        ),
    ),
    Explanation(
        kind="gpu-shared",
        severity="warning; critical where NCCL refuses it",
        brief="two ranks of the job are on one GPU",
        meaning="Each rank should have a GPU of its own. Two on one share its time and its memory while another card may be idle; NCCL refuses "
        'such a group ("Duplicate GPU detected").',
        found=(
            "Torch in both ranks, or the driver's list of processes, names the same card. Two instances of a divided card (MIG) are two cards; "
            "where NVIDIA's MPS serves the card, sharing is meant.",
        ),
        steps=(
            "Does the program choose by LOCAL_RANK, before its first tensor?",
            "Does the launcher start more ranks than the host has GPUs?\nnvidia-smi -L",
            "Wanted (a test on one card)? Limit each rank's part:\npython -c 'import torch; help(torch.cuda.set_per_process_memory_fraction)'",
        ),
        before=('model.to("cuda")                         # every rank: card 0',),
        after=('torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))', 'model.to("cuda")'),
    ),
    Explanation(
        kind="gpu-memory-low",
        severity="warning",
        brief="a GPU's memory is nearly full, and allocations fail",
        meaning="Torch keeps what it once had, so a full card alone is no news. Here allocations already had to be tried again, which costs time "
        "at every step, or others hold a part of the memory. The next larger batch ends in out of memory.",
        found=(
            "{gpu_memory_low_ratio} of the card or less is left, and within four times {gpu_mean_s} torch had to give memory back to get some, or failed, "
            "{gpu_retries} times; or others hold {gpu_foreign_ratio} or more.",
            "Reserved and not allocated beyond {gpu_spare_ratio} is fragmentation.",
        ),
        steps=(
            "Fragmentation:\nexport PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            "Several processes on the card: give each its part.\ntorch.cuda.set_per_process_memory_fraction(0.4)",
            "Else less at once: smaller batch, activation checkpointing, sharded optimizer.",
            "What holds it?\ntorch.cuda.memory_summary()",
        ),
    ),
    Explanation(
        kind="gpu-throttled",
        severity="warning",
        brief="a GPU is held at lower clocks than the job's others",
        meaning="Heat, power or the hardware's own protection holds the clocks of this card down. It computes slower than the others at the same "
        "work, and they wait for it at every step.",
        found=(
            "The driver names such a reason at every look for {gpu_throttled_s}, and the SM clock is below {gpu_slow_ratio} of what the job's other "
            "cards of its kind run at (of what it could run at, where it is the only one; then a power cap is no reason). A card at its power cap "
            "is compared with those that draw {gpu_load_ratio} of its power: others may run faster because they wait. A card at rest is not judged.",
            "Where others are seen waiting for it, that is told as a straggler, with the clock as its cause.",
        ),
        steps=(
            "What holds it?\nnvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER",
            "Fans, air, a neighbour that heats: compare with the other cards of that host.",
            "Start without that host, and have it looked at.",
        ),
    ),
    Explanation(
        kind="gpu-error",
        severity="critical; warning where the card goes on",
        brief="a GPU of the job has failed",
        meaning="The driver reports an error of the card: it has fallen off the bus, its memory has an error that cannot be corrected, a link is "
        "down. What its ranks do then (stand in a kernel, crash) is a consequence.",
        found=(
            "The driver's events (Xid) while the job runs, its count of uncorrectable errors, or a card that answers no more. Xids that a program "
            "causes by itself (a bad address, an assert) are not counted: see the rank's exception.",
        ),
        steps=(
            "What does the kernel say?\ndmesg | grep -i xid",
            "Take the host out of the job, and start again from the last checkpoint.",
            "Its state, and whether a reset is wanted:\nnvidia-smi -q -d ECC,ROW_REMAPPER",
        ),
    ),
)
