"""Pages of the findings about jobs that move, and not as they should."""

from __future__ import annotations

from ddtop.diagnosis.explain.page import Explanation
from ddtop.diagnosis.kinds import Kind

PAGES = (
    Explanation(
        kind=Kind.STRAGGLER,
        severity="warning; critical if this alone costs more than half of the step",
        brief="in most steps all ranks wait for the same rank",
        meaning=(
            "All ranks leave a collective together, so the slowest one sets the speed, and the step"
            " time is the same on every rank. Only the waits show which rank is slow: it hardly"
            " waits, and the others wait for it in every step."
        ),
        found=(
            (
                "If sampled waits differ between ranks, the agents read torch's flight recorder"
                " once. It has the exact time of each collective on each rank."
            ),
            (
                "The rank must be late in {straggler.late_ratio} of at least {straggler.steps}"
                " steps, by at least {straggler.ratio} of the step and {straggler.least_ms}, far"
                " more often than by chance. Below {straggler_strong_ratio} a second read must"
                " agree. If a different rank is last each time, or only one step is long, there is"
                " no straggler."
            ),
            (
                "The cause is what takes this rank longer than the others: a loader (if theirs are"
                " busy for less than {loading.busy_ratio} of the time), CPU, memory, garbage"
                " collection, GIL, a line of Python, a slower GPU. If other programs take its CPU,"
                " or answer it late, it is only a warning."
            ),
            (
                "With NCCL the CPU side of all ranks moves together, so ddtop compares GPUs of the"
                " same model, for four times {gpu_mean_s}. The GPUs that wait spin: they are"
                " {gpu_wait_busy_ratio} busy but draw {gpu_wait_power_ratio} of the straggler's"
                " power, or {gpu-wait.below_peak_ratio} of their own peak while heat slows the"
                " straggler."
            ),
        ),
        steps=(
            (
                "The finding names the function. What does this rank do there that the others do"
                " not? You can gain at most its share of the step."
            ),
            (
                "Loader: see input-bound. CPU: see what else runs on its cores:\ntop -H; taskset"
                " -cp PID"
            ),
            (
                "Garbage collection: call gc.freeze() after start-up, and gc.collect() on all"
                " ranks at the same step."
            ),
            (
                "If all ranks run the same code, compare its host and GPU with another rank's"
                " (clocks, heat, other jobs)."
            ),
        ),
        before=("if rank == 0:", "    write_metrics(step)        # all others wait in every step"),
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
            "The job still trains, but slower than ten minutes ago, slower than at its start, or"
            " slower than the last run of the same name. The program does not report this, and the"
            " job will end later than planned."
        ),
        found=(
            (
                "Each agent measures tokens, samples or steps per second over two minutes of"
                " training, in four parts. Validation, checkpoints and compilation do not count,"
                " and neither does the first half minute."
            ),
            (
                "The job must be at least {slowdown.info_ratio} slower. On most ranks the"
                " difference must also be {slowdown.noise_factor} times the spread of the four"
                " parts, so that a speed that always varies is not reported."
            ),
            (
                "The finding says what takes more time: data, one slow rank, GPU clocks, a lack of"
                " CPU, or communication."
            ),
        ),
        steps=(
            "Data: see input-bound. One rank: see straggler. Clocks: see gpu-throttled.",
            (
                "Have other jobs started on the same hosts, disks or network since then?\nddtop"
                " jobs; top"
            ),
            (
                "If the samples have become longer (a curriculum), report tokens with"
                " ddtop.progress(tokens=...). ddtop then compares tokens per second."
            ),
        ),
        no_demo="it takes ten minutes at one speed and two at another",
    ),
    Explanation(
        kind=Kind.IMBALANCE,
        severity="info",
        brief="each step waits for some rank, each time for another",
        meaning=(
            "No rank is slow, but in each step one has more to do than the others, which wait for"
            " it: longer samples, a garbage collection, more tokens for its experts. Nobody is at"
            " fault, and the time is lost all the same."
        ),
        found=(
            (
                "ddtop compares when the ranks arrive in their collectives. In the usual step a"
                " rank waits for the last one for {imbalance.ratio} of the time, over"
                " {imbalance.steps} steps or more, and no rank is the last in more than"
                " {imbalance.last_ratio} of them. The samples of the agents must agree."
            ),
            (
                "Silent while a straggler, a slow loader, a lack of CPUs or communication explains"
                " the waits, and for the stages of a pipeline."
            ),
        ),
        steps=(
            "Fill batches by number of tokens, not of samples; or sort samples by length.",
            "Collect garbage on all ranks at once:\ngc.disable(); ...; gc.collect()",
            "Accumulate gradients: over several batches the differences average out.",
            "Mixture of experts: look at the tokens per expert (capacity, balancing loss).",
        ),
        no_demo="what it costs is a choice of the program, and nothing is broken",
    ),
    Explanation(
        kind=Kind.SYNC_BOUND,
        severity="warning",
        brief="much of each step is communication, and no rank is late",
        meaning=(
            "The ranks arrive together, and the time goes into the collectives themselves. Each"
            " collective has a fixed cost, so many small ones cost more than the transfer of their"
            " data."
        ),
        found=(
            (
                "A rank spends at least {sync-bound.ratio} of its time in collectives, not"
                " counting the wait for the last rank to arrive (from torch's flight recorder). It"
                " makes at least {sync-bound.calls} collective calls per step, and nearly all of"
                " them are all_reduce, broadcast or barrier. A sharded model gathers by design, so"
                " gathers are not judged."
            ),
        ),
        steps=(
            "Reduce metrics as one tensor, and only every few steps.",
            (
                "If you reduce gradients yourself, flatten them into one tensor, or let DDP do it"
                " (bucket_cap_mb)."
            ),
            "Accumulate gradients: model.no_sync() on all but the last micro-batch.",
            "Remove barrier() where a collective follows anyway.",
        ),
        before=("for p in model.parameters():", "    dist.all_reduce(p.grad)"),
        after=("model = DistributedDataParallel(model)   # a few buckets, in backward",),
    ),
    Explanation(
        kind=Kind.TRANSFER_BOUND,
        severity="warning",
        brief="large tensors take most of each step, no rank is late",
        meaning=(
            "The ranks arrive together, and then wait until their data has been sent. The network"
            " is slow for what the job sends, or the ranks use a slow interface."
        ),
        found=(
            (
                "Collectives have {transfer-bound.call_bytes} of input or more in the mean, and"
                " take {transfer-bound.ratio} of the time, not counting the wait for the last rank"
                " to arrive (from torch's flight recorder). Where the ranks may compute meanwhile,"
                " as in backward, they must take {transfer-bound.overlapped_ratio}."
            ),
            (
                "A job younger than {transfer-bound.job_s} is not judged, and neither are NCCL,"
                " sharded models, and hosts with more ranks than CPUs."
            ),
        ),
        steps=(
            (
                "Which interface do the ranks use, and how fast is it?\nip -br addr; ethtool eth0"
                " | grep Speed"
            ),
            "Name the fast one: GLOO_SOCKET_IFNAME=ib0. On GPUs use NCCL.",
            "Accumulate gradients: model.no_sync() on all but the last micro-batch.",
            "Send half as much:\nmodel.register_comm_hook(None, default_hooks.bf16_compress_hook)",
        ),
        no_demo="it takes a slow network",
    ),
    Explanation(
        kind=Kind.CPU_OVERSUBSCRIBED,
        severity="warning",
        brief="a host's ranks are ready to run but get no CPU",
        meaning=(
            "More threads want to run than there are cores, or the ranks are pinned to the same"
            " few cores. Everything becomes slow, by a different amount in each step. Threads that"
            " spin while they wait (OpenMP, MPI) make it worse."
        ),
        found=(
            (
                "The main threads of half the host's ranks waited for a CPU for"
                " {oversubscribed_ratio} of {oversubscribed_window_s} (run delay in"
                " /proc/PID/schedstat), and the ranks used {cpu-oversubscribed.own_ratio} of the"
                " CPUs and need more. Or a CPU quota throttled them for {resources.throttled_ratio}"
                " of that time. It is shown once it has stood for {brief.stood_s}."
            ),
        ),
        steps=(
            (
                "Set the number of threads to cores divided by ranks, in the environment of all "
                "ranks:\nexport OMP_NUM_THREADS=4"
            ),
            "Use fewer DataLoader workers: ranks x (1 + workers) should not exceed the cores.",
            (
                "Pinned ranks: see which CPUs they may use:\ntaskset -cp PID; srun"
                " --cpu-bind=cores --cpus-per-task=8"
            ),
            "A container's quota:\ncat /sys/fs/cgroup/cpu.max /sys/fs/cgroup/cpu.stat",
            "MPI with more ranks than cores:\nmpirun --mca mpi_yield_when_idle 1",
        ),
    ),
    Explanation(
        kind=Kind.MEMORY_PRESSURE,
        severity="warning",
        brief="memory, /dev/shm, files or threads are nearly used up",
        meaning=(
            "A host, its /dev/shm, a rank's cgroup or its table of open files is nearly full. Soon"
            " the out-of-memory killer may end a process, a worker may die of SIGBUS, or a call"
            ' may fail with "too many open files".'
        ),
        found=(
            (
                "At most {resources.memory_low_ratio} and at most {memory_low_bytes} of memory is"
                " left. Memory that the kernel can free at once counts as free. Or threads of the"
                " host waited for memory for {resources.memory_stall_ratio} of the time. For"
                " /dev/shm the limits are {resources.shm_low_ratio} and {resources.shm_low_bytes}."
            ),
            (
                "A rank has {resources.files_full_ratio} of its allowed descriptors open, or its"
                " cgroup uses {resources.pids_full_ratio} of its threads (pids.max)."
            ),
            (
                "At most {space.address_low_ratio} of a rank's RLIMIT_AS or RLIMIT_DATA is left. If"
                " only this rank is late in most steps, that is why the others wait for it."
            ),
        ),
        steps=(
            "See which processes use the memory:\nps -eo pid,rss,args --sort=-rss | head",
            (
                "Use fewer DataLoader workers or a smaller prefetch_factor. Each worker copies the"
                " Python lists of its dataset."
            ),
            (
                "/dev/shm: docker run --shm-size=8g; remove files that dead jobs left behind:\nls"
                " -lS /dev/shm"
            ),
            (
                "Descriptors: ulimit -n 65536,"
                " or\ntorch.multiprocessing.set_sharing_strategy('file_system')"
            ),
        ),
        no_demo="it takes a host whose memory is nearly used up, and yours should not be",
    ),
    Explanation(
        kind=Kind.DISK_FULL,
        severity="warning",
        brief="a disk that ranks write to is full",
        meaning=(
            "The next checkpoint, log or cache file may fail or be incomplete. Usually one rank "
            "fails first, and the others wait for it."
        ),
        found=(
            (
                "ddtop checks the file systems of each rank's working folder, its TMPDIR and the"
                " folders that it writes or saves to. On one of them, at most {disk_full_ratio}"
                " and at most {space.disk_full_bytes} is free, or at most that share of the inodes."
            ),
        ),
        steps=(
            "What fills it?\ndf -h .; df -i .; du -xsh * | sort -h | tail",
            "Keep only the last few checkpoints, or write them to another file system.",
            "TMPDIR=/path/with/room moves caches and temporary files.",
        ),
        no_demo="it takes a disk that is nearly full",
    ),
    Explanation(
        kind=Kind.SAMPLER_NOT_DISTRIBUTED,
        severity="warning",
        brief="all data-parallel ranks read the same data",
        meaning=(
            "Each rank's DataLoader reads the whole dataset. Nothing fails and the loss falls. "
            "But with N ranks an epoch takes N times too long, and without shuffling all ranks "
            "compute the same gradient."
        ),
        found=(
            (
                "The loader that fed {sampler-not-distributed.feed_steps} optimizer steps uses"
                " torch's own sequential or random sampler. The class, length and attributes of its"
                " dataset are the same on every rank of the group in which DistributedDataParallel"
                " averages gradients."
            ),
            (
                "Without shuffling, the first batches must be equal. With shuffling, the dataset"
                " must hold values or a path, and its code must not use the rank. ddtop does not"
                " judge sampling with replacement, iterable datasets, other samplers, or loops"
                " that draw as many batches per step as there are ranks."
            ),
        ),
        steps=(
            "Give the loader a DistributedSampler, as below, and let the sampler shuffle.",
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
        brief="a DistributedSampler repeats its order in every epoch",
        meaning=(
            "DistributedSampler shuffles by its epoch number, and only set_epoch changes that"
            " number. Without set_epoch, every epoch has the same order, and each rank always gets"
            " the same part of the data."
        ),
        found=(
            (
                "The optimizer made steps in two passes over the loader, and all passes so far"
                " began with the same epoch number, on every rank of the group. At least"
                " {sampler-not-distributed.feed_steps} steps were made between its batches."
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
        kind=Kind.LOSS_NOT_FINITE,
        severity="warning",
        brief="the loss is nan or infinite, and the job trains on",
        meaning=(
            "The program reports a loss that is not a number, step after step. The parameters are"
            " most often lost by then: every further step costs time and gives nothing."
        ),
        found=(
            (
                "The loss is the one that a framework logs or ddtop.progress(loss=...) reports. It"
                " was nan or infinite in every report over {loss-not-finite.steps} steps. ddtop"
                " computes nothing itself and reads no GPU."
            ),
            (
                "Ranks are named only while other ranks report a number. Mixed precision that skips"
                " a step or two is not reported."
            ),
        ),
        steps=(
            (
                "Go back to a checkpoint from well before the step in the sentence: reports are a"
                " second apart."
            ),
            "Which operation made it?\ntorch.autograd.set_detect_anomaly(True)",
            (
                "Only some ranks: look at their batches. DDP gives the nan to all ranks in the next"
                " step."
            ),
        ),
        before=("loss.backward()", "optimizer.step()          # nan once, nan for ever"),
        after=(
            "if not torch.isfinite(loss):",
            "    raise RuntimeError('loss is not finite')",
        ),
        no_demo="it needs a program that reports its loss; the demo's reports a real one",
    ),
    Explanation(
        kind=Kind.DIVERGED,
        severity="warning",
        brief="parameters that should be equal on all ranks are not",
        meaning=(
            "DistributedDataParallel makes the parameters equal once, when it wraps the model. From"
            " then on it only averages gradients. A rank that makes another update stays different:"
            " nothing fails, but the ranks average gradients of different models."
        ),
        found=(
            (
                "After every 16th optimizer step each rank reads one element of a few parameters."
                " Samples of the same step differed by more than {diverged.ratio} of the value,"
                " {diverged.samples} times in a row. Steps count since the model was wrapped."
            ),
            (
                "Only float32 parameters of models in DistributedDataParallel are compared, no"
                " buffers. ddtop is silent after an optimizer step in no_sync or join, with a"
                " communication hook, and where torch.compile or a CUDA graph runs the step."
            ),
            "A rank is named only if more ranks agree with each other than differ.",
        ),
        steps=(
            "Print the learning rate on every rank: optimizer.param_groups[0]['lr']",
            "Look for a step that only some ranks skip, and for model.module(...) in the training.",
            "Load checkpoints before the model is wrapped, or on every rank from the same file.",
        ),
        before=("if torch.isfinite(loss):   # on this rank", "    optimizer.step()"),
        after=(
            "ok = torch.isfinite(loss).float()",
            "dist.all_reduce(ok, op=dist.ReduceOp.MIN)",
            "if ok:",
            "    optimizer.step()",
        ),
        no_demo="it takes a program that trains a real model for some time",
    ),
    Explanation(
        kind=Kind.EXCEPTION_SWALLOWED,
        severity="info; if a critical finding blames the rank, a line in that finding's evidence",
        brief="some ranks catch an exception that the others never see",
        meaning=(
            "The same line of the program's own code catches the same exception again and again, on"
            " these ranks only. If one rank skips a batch, the others wait for it in a collective."
            " The handler may also hide the real error."
        ),
        found=(
            (
                "This works only with DDTOP_EXCEPTIONS=1 (Python 3.12 and later). For short"
                " periods, ddtop records which exceptions the main thread catches"
                " (sys.monitoring)."
            ),
            (
                "The exception was caught in each of {exception-swallowed.windows} such periods, on"
                " at most half of the ranks, and never on the others."
            ),
            (
                "Exceptions that libraries catch or that are raised again do not count; neither do"
                " StopIteration, timeouts and empty queues."
            ),
        ),
        steps=(
            "Log the exception in the handler, with its traceback: logging.exception(...)",
            (
                "Let all ranks decide together: all_reduce a flag, so that either all ranks skip"
                " the step or none does."
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
        no_demo="ddtop looks for it only with DDTOP_EXCEPTIONS=1, on Python 3.12 and later",
    ),
    Explanation(
        kind=Kind.WRONG_BACKEND,
        severity="warning",
        brief="the backend does not fit the device of the tensors",
        meaning=(
            "The program asked for NCCL, but torch finds no GPU or was built without NCCL. Then"
            " init_process_group or the first collective raises an exception, and the ranks end."
            " Or gradients on GPUs go through gloo, which copies them to the host and back in each"
            " step."
        ),
        found=(
            "A rank's exception says that NCCL or a GPU is missing.",
            (
                "Or torch has NCCL, each rank has its own GPU, and a DistributedDataParallel model"
                " with some MiB of gradients on a GPU uses gloo for CUDA tensors. A second gloo"
                " group, for barriers and objects, is fine."
            ),
        ),
        steps=(
            'To train on CPUs: init_process_group("gloo").',
            (
                "To train on GPUs: check that the job sees them and that this torch is built for "
                'them:\nnvidia-smi; python -c "import torch; print(torch.version.cuda)"'
            ),
            (
                "To use both: call init_process_group() without a backend. CPU tensors then use"
                " gloo, and CUDA tensors use NCCL."
            ),
        ),
        no_demo="its ranks end at once, and the finding then is `rank-crashed`",
    ),
)
