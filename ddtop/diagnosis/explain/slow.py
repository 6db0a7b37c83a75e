"""Pages of the findings about jobs that move, and not as they should."""

from __future__ import annotations

from ddtop.diagnosis.explain.page import Explanation
from ddtop.diagnosis.kinds import Kind

PAGES = (
    Explanation(
        kind=Kind.STRAGGLER,
        severity="warning; critical where it costs more than half of the step",
        brief="in most steps all ranks wait for the same one",
        meaning=(
            "All ranks leave a collective together, so the slowest one sets the speed and every"
            " step timer shows the same. Only the waits show which rank is slow: it hardly waits,"
            " and the others wait for it, step after step."
        ),
        found=(
            (
                "Where sampled waits differ the agents read torch's flight recorder once: the exact"
                " time of each collective, rank by rank."
            ),
            (
                "Late in {straggler_late_ratio} of {straggler_steps} steps or more, for"
                " {straggler_ratio} of the step and {straggler_least_ms} at least, far beyond"
                " chance. Below {straggler_strong_ratio} a second read must agree. A last rank that"
                " changes, or one long step, is no straggler."
            ),
            (
                "The cause is what this rank does longer than the others: loader, CPU, memory, "
                "garbage collection, GIL, a line of Python, or what holds its GPU."
            ),
            (
                "On NCCL hosts that wait for their GPUs move together: then, for four times"
                " {gpu_mean_s}, the others' GPUs are {gpu_wait_busy_ratio} busy at"
                " {gpu_wait_power_ratio} of its power (they spin), or at"
                " {gpu_wait_below_peak_ratio} of their own while heat slows it. Only GPUs of the"
                " same kind."
            ),
        ),
        steps=(
            (
                "The sentence has the function: what does this rank do there that the others do"
                " not? Its share of the step is what you can gain."
            ),
            "Loader: see input-bound. CPU: what else runs on its cores?\ntop -H; taskset -cp PID",
            "Garbage: gc.freeze() after start-up; gc.collect() on all ranks at the same step.",
            (
                "Nothing in the code: compare its host and GPU with another's (clocks, heat, other"
                " jobs)."
            ),
        ),
        before=("if rank == 0:", "    write_metrics(step)        # all others wait, at every step"),
        after=(
            "if rank == 0 and step % 100 == 0:",
            "    queue.put(step)            # a thread writes them",
        ),
    ),
    Explanation(
        kind=Kind.SLOWDOWN,
        severity="info; warning from {slowdown_warning_ratio}",
        brief="the job trains slower than before",
        meaning=(
            "The job still trains, and slower than ten minutes ago, than at its start, or than its"
            " last run of the same name. Nothing in the program says so, and the end is later than"
            " planned."
        ),
        found=(
            (
                "Each agent measures two minutes of training in four pieces: tokens, samples or"
                " steps a second. Validation, checkpoints and compilation do not count, nor does"
                " the first half minute."
            ),
            (
                "At least {slowdown_info_ratio} slower, and on most ranks by"
                " {slowdown_noise_factor} times the spread of the four pieces: a speed that"
                " varies is no slowdown."
            ),
            (
                "The sentence says what takes the time: data, one rank for which the others wait,"
                " clocks of GPUs, no CPU, or communication."
            ),
        ),
        steps=(
            "Data: see input-bound. One rank: see straggler. Clocks: see gpu-throttled.",
            "Other jobs on the same hosts, disks or network since then?\nddtop jobs; top",
            (
                "The samples have become longer (a curriculum): report the tokens to ddtop,"
                " ddtop.progress(tokens=...), and it compares those."
            ),
        ),
    ),
    Explanation(
        kind=Kind.SYNC_BOUND,
        severity="warning",
        brief="much of each step is communication, and no rank is late",
        meaning=(
            "The ranks arrive together and wait for the collectives themselves. Each collective has"
            " a fixed cost: many small ones in a step cost more than their data."
        ),
        found=(
            (
                "A rank spends {sync_bound_ratio} of its time or more in collectives, not counting "
                "the wait for the last rank to arrive (read from torch's flight recorder), with "
                "{sync_bound_calls} or more in a step, all_reduce nearly all of them."
            ),
        ),
        steps=(
            "Reduce metrics as one tensor, and every few steps only.",
            "Gradients by hand: flatten them into one tensor, or let DDP do it (bucket_cap_mb).",
            "Accumulate: model.no_sync() on all but the last micro-batch.",
            "Leave out barrier() where a collective follows anyway.",
        ),
        before=("for p in model.parameters():", "    dist.all_reduce(p.grad)"),
        after=("model = DistributedDataParallel(model)   # a few buckets, in backward",),
    ),
    Explanation(
        kind=Kind.CPU_OVERSUBSCRIBED,
        severity="warning",
        brief="a host's ranks are ready to run and have no CPU",
        meaning=(
            "More threads want to run than there are cores for, or the ranks are pinned to the same"
            " few. Everything becomes slow at the same time, and differently in each step. Threads"
            " that spin while they wait (OpenMP, MPI) make it worse."
        ),
        found=(
            (
                "The main threads of half the host's ranks waited for a CPU {oversubscribed_ratio} "
                "of {oversubscribed_window_s} (run delay in /proc/PID/schedstat), they used "
                "{oversubscribed_own_ratio} of the CPUs, and need more than these; or a CPU quota "
                "throttled them for {throttled_ratio} of it."
            ),
        ),
        steps=(
            (
                "Threads: cores divided by ranks, in the environment of all ranks:\nexport"
                " OMP_NUM_THREADS=4"
            ),
            "Fewer DataLoader workers: ranks x (1 + workers) should fit the cores.",
            (
                "Pinned: which CPUs may they use?\ntaskset -cp PID; srun --cpu-bind=cores"
                " --cpus-per-task=8"
            ),
            "A container's quota:\ncat /sys/fs/cgroup/cpu.max /sys/fs/cgroup/cpu.stat",
            "MPI with more ranks than cores: mpirun --mca mpi_yield_when_idle 1",
        ),
    ),
    Explanation(
        kind=Kind.MEMORY_PRESSURE,
        severity="warning",
        brief="memory, /dev/shm, files or threads are nearly used up",
        meaning=(
            "The host, the cgroup of a rank, its /dev/shm or its table of open files is nearly"
            " full. The next event is the out-of-memory killer, a worker that dies of SIGBUS, or"
            ' "too many open files".'
        ),
        found=(
            (
                "{memory_low_ratio} or less is left, and no more than {memory_low_bytes} (what the"
                " kernel can drop at once counts as free); or threads of the host waited for memory"
                " {memory_stall_ratio} of the time."
            ),
            (
                "{files_full_ratio} of the descriptors that a rank may have are open, or"
                " {pids_full_ratio} of its cgroup's threads (pids.max)."
            ),
            "{address_low_ratio} or less of a rank's RLIMIT_AS or RLIMIT_DATA is left.",
        ),
        steps=(
            "Who uses it?\nps -eo pid,rss,args --sort=-rss | head",
            (
                "Fewer DataLoader workers or a smaller prefetch_factor; workers copy the Python"
                " lists of their dataset."
            ),
            "/dev/shm: docker run --shm-size=8g; remove what dead jobs left:\nls -lS /dev/shm",
            (
                "Descriptors: ulimit -n 65536,"
                " or\ntorch.multiprocessing.set_sharing_strategy('file_system')"
            ),
        ),
    ),
    Explanation(
        kind=Kind.DISK_FULL,
        severity="warning",
        brief="a disk that ranks write to is full",
        meaning=(
            "The next checkpoint, log or cache file may fail, or be incomplete. Usually one rank "
            "fails first, and the others wait for it."
        ),
        found=(
            (
                "{disk_full_ratio} or less is free and no more than {disk_full_bytes}, or as few"
                " inodes, on the file system of a rank's working folder or TMPDIR."
            ),
        ),
        steps=(
            "What fills it?\ndf -h .; df -i .; du -xsh * | sort -h | tail",
            "Keep the last few checkpoints only, and write them to another file system.",
            "TMPDIR=/path/with/room moves caches and temporary files.",
        ),
    ),
    Explanation(
        kind=Kind.SAMPLER_NOT_DISTRIBUTED,
        severity="warning",
        brief="all data-parallel ranks read the same data",
        meaning=(
            "Each rank's DataLoader reads the whole dataset. Nothing fails and the loss falls, but "
            "with N ranks an epoch takes N times too long, and without a shuffle all ranks compute "
            "the same gradient."
        ),
        found=(
            (
                "The loader that fed {feed_steps} optimizer steps has torch's own sequential or"
                " random sampler, and class, length and attributes of its dataset are equal on"
                " every rank of the group in which DistributedDataParallel averages gradients."
            ),
            (
                "In order, their first batches must be equal; shuffled, the dataset must hold"
                " values or a path, and its code not ask for the rank. As many batches a step as"
                " there are ranks, draws with replacement, iterable datasets and other samplers are"
                " not judged."
            ),
        ),
        steps=(
            "Give the loader a DistributedSampler, as below, and let it shuffle.",
            "You may have to change the learning rate: the epoch becomes shorter.",
        ),
        before=("DataLoader(data, batch_size=32, shuffle=True)",),
        after=(
            "sampler = DistributedSampler(data, shuffle=True)",
            "DataLoader(data, batch_size=32, sampler=sampler)",
        ),
    ),
    Explanation(
        kind=Kind.EPOCH_NOT_SET,
        severity="warning",
        brief="a DistributedSampler shuffles the same in every epoch",
        meaning=(
            "DistributedSampler shuffles by its epoch number, which only set_epoch changes. Without"
            " it every epoch has the same order and the same part for each rank."
        ),
        found=(
            (
                "A second pass of the loader began with the same epoch number as the one before, on"
                " every rank of the group, and {feed_steps} optimizer steps were made in it."
            ),
        ),
        steps=("Call set_epoch before the loop over the loader, as below.",),
        before=("for epoch in range(10):", "    for batch in loader:", "        step(batch)"),
        after=(
            "for epoch in range(10):",
            "    sampler.set_epoch(epoch)",
            "    for batch in loader:",
            "        step(batch)",
        ),
    ),
    Explanation(
        kind=Kind.EXCEPTION_SWALLOWED,
        severity="info; where a critical finding blames the rank, a line of its evidence",
        brief="some ranks catch an exception that the others never see",
        meaning=(
            "The same line of the program's own code catches the same exception again and again, on"
            " these ranks only. If one rank skips a batch, the others wait for it in a collective."
            " And what the handler hides is worth reading."
        ),
        found=(
            (
                "Only with DDTOP_EXCEPTIONS=1 (Python 3.12 and later): ddtop observes for short "
                "times what the main thread catches, by sys.monitoring."
            ),
            (
                "In each of {caught_windows} looks, on at most half of the ranks, and never on the"
                " others."
            ),
            (
                "Not counted: what libraries catch; StopIteration, timeouts and empty queues; what"
                " is raised again."
            ),
        ),
        steps=(
            "Log it in the handler, with its traceback: logging.exception(...)",
            (
                "Decide together what is skipped: all_reduce a flag, then all ranks skip the step"
                " or none does."
            ),
        ),
        before=(
            "try:",
            "    loss = model(batch)",
            "except ValueError:",
            "    continue                   # the others are in backward",
        ),
        after=(
            "ok = torch.tensor(int(usable(batch)))",
            "dist.all_reduce(ok, op=dist.ReduceOp.MIN)",
            "if not ok:",
            "    continue",
        ),
    ),
    Explanation(
        kind=Kind.WRONG_BACKEND,
        severity="warning",
        brief="the backend does not fit the devices",
        meaning=(
            "The program asked for NCCL, but torch finds no GPU or was built without NCCL: "
            "init_process_group or the first collective raises, and the ranks end. Or gradients on "
            "GPUs go through gloo, which copies them to the host and back at each step."
        ),
        found=(
            "A rank's exception says so.",
            (
                "Torch has NCCL, each rank a GPU of its own, and the group of a "
                "DistributedDataParallel with some MiB of gradients on a GPU has gloo for CUDA. A "
                "second group on gloo beside NCCL, for barriers and objects, is fine."
            ),
        ),
        steps=(
            'On CPUs: init_process_group("gloo").',
            (
                "With GPUs: are they visible in the job, and is this torch built for them?\n"
                'nvidia-smi; python -c "import torch; print(torch.version.cuda)"'
            ),
            (
                "One program for both: init_process_group() without a backend (CPU tensors over"
                " gloo, CUDA tensors over NCCL)."
            ),
        ),
    ),
)
