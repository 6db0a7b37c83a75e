"""Every threshold, with its unit and its reason. The model and the rules get them as a `Policy`.

The end of a name is the unit. A docstring that begins with "..." continues the one before.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Policy:
    """The thresholds; frozen, so that two viewers with the same records see the same verdict."""

    gone_limit_s: float = 1.0
    """Waiting for a process that has ended. In one second the launcher reports first."""
    stopped_limit_s: float = 2.0
    """Waiting for a process in state T. Debuggers and job control stop a process briefly."""
    still_limit_s: float = 5.0
    """Waiting for a rank without progress. Page-cache misses, GC and slow opens are shorter."""
    stall_alone_limit_s: float = 30.0
    """Uninterruptible sleep of a rank for which nobody waits yet. A busy file server recovers."""
    working_limit_s: float = 5.0
    """Waiting for a rank that visibly works, at least. Usually `healthy_wait_factor` counts."""
    healthy_wait_factor: float = 3.0
    """... and this many times the longest wait that ended well lately, because a job that validates
    after each epoch has such waits."""
    working_habit_factor: float = 1.5
    """... or this many times the second longest pause of those that wait, at most
    `working_critical_s`. A job that validates every 500 steps has such a pause each time, and the
    waits are remembered for 100 steps only."""
    working_critical_s: float = 60.0
    """A rank that works while others wait is a warning until then. Endless loops are hangs."""
    working_critical_factor: float = 5.0
    """... or this many times the longest healthy wait, whichever is later."""
    transfer_critical_s: float = 300.0
    """... or this, while it does I/O with little CPU, or lacks CPU time. A minute is short then."""
    still_habit_factor: float = 1.5
    """A rank without progress is a warning up to this many times the second longest healthy wait.
    If each round waits for rollouts or for a server, the next such wait is normal. A single long
    wait, at the start or because of a broken network, is not a pattern."""
    still_stay_factor: float = 2.0
    """... and nothing is said of it up to this many times its longest stay at the same line so far.
    A master that sleeps between bursts does so each time, and bursts differ in length."""
    phase_overdue_factor: float = 3.0
    """A rank that saves a checkpoint, validates or compiles and works is a warning up to this many
    times the longest such phase so far. A checkpoint of twice the usual length is a busy server."""
    phase_still_limit_s: float = 20.0
    """A rank in such a phase that uses no CPU and does no I/O is a warning until then. An upload
    to an object store waits for its answer this long."""
    phase_usual_factor: float = 1.2
    """... or this many times the longest such phase so far, whichever is later: it may have been
    waiting for the store each time."""
    timeout_critical_ratio: float = 0.5
    """... but no later than at this share of the group's own timeout."""
    cpu_working_ratio: float = 0.05
    """Cores used, over `cpu_window_s`. Asleep: below 0.01. Decoding images: above 0.3."""
    cpu_waning_ratio: float = 0.025
    """Between this and `cpu_working_ratio` the mean over `window_s` decides, so that a rank near
    the limit does not change at every snapshot."""
    cpu_window_s: float = 2.0
    """CPU use and wake-ups are measured over this time."""
    io_working_bytes_per_s: float = 65536.0
    """A file is read or written. Heartbeats and polls of a sleeping process: below 1 KB/s."""
    handler_writes_s: float = 30.0
    """A rank that handles one exception while a file of its own grows counts as working for this
    time: it writes down what is wrong. After that it holds up the ranks that wait for it."""
    socket_working_switches_per_s: float = 5.0
    """A main thread that reads from a socket and wakes this often is being served. A stuck read
    does not wake at all, a long poll wakes about once a second."""
    child_working_wakes_per_s: float = 5.0
    """A rank that waits for a child process counts as working if the child's main thread wakes this
    often. A child that hangs does not wake; one that polls wakes once or twice a second."""
    slowdown_info_ratio: float = 0.1
    """Share of its speed that a job has lost, over two minutes. Shared hosts vary by less."""
    slowdown_warning_ratio: float = 0.3
    """... from here on it is a warning: a week of training becomes ten days."""
    slowdown_noise_factor: float = 1.5
    """The loss must be so many times the spread of four pieces of half a minute. Random noise
    reaches that in less than one of a thousand looks."""
    slowdown_share_ratio: float = 0.5
    """Waiting for data explains a slowdown if it is this share of what a step takes longer."""
    slowdown_wait_ratio: float = 0.15
    """By so much the share of the time in collectives must have grown to say so: it is sampled."""
    slowdown_even_ratio: float = 0.05
    """... and by less than this on the ranks that the others wait for."""
    slowdown_few_part: float = 0.25
    """Those are at most this part of the ranks. Of more nobody can say that the others wait."""
    slowdown_delay_ratio: float = 0.2
    """Share of the time in which a rank waits for a CPU, to name that as the cause."""
    report_silent_s: float = 3.5
    """Three missed reports: only C code that holds the GIL, or a stopped process, causes that."""
    reports_apart_s: float = 1.5
    """Agents report once or twice a second. In a longer gap some reports were left out."""
    host_quiet_s: float = 3.0
    """A relay reports once a second, and hubs forward reports a few times a second. After three
    missed reports the ranks of the host are not judged by their last reports."""
    host_lost_s: float = 8.0
    """No record of a host for this time while the hub is heard. Dead relays are replaced in 6 s."""
    host_lost_step_factor: float = 3.0
    """... of the longest usual step: a collective with a rank of that host that completed within
    this time shows that the rank takes part."""
    relay_away_s: float = 15.0
    """A relay's last look at a process counts for this time. Unknown is not "no progress"."""
    first_look_s: float = 3.0
    """A relay that was just heard for the first time needs two looks, a second apart, to know which
    ranks work."""
    clock_matters_s: float = 0.05
    """A host's clock that is off by less is not corrected: no rule compares more exactly."""
    clock_error_ratio: float = 0.25
    """Both clocks together may be wrong by this share of the reported wait of the others. A wrong
    clock makes a whole host look late."""
    clock_even_ratio: float = 0.02
    """... by this share of a step, for the question how even the ranks are."""
    clock_shown_s: float = 1.0
    """A clock that is off by more is shown: that host's log files do not fit the others'."""
    restart_apart_s: float = 10.0
    """Processes of one life of a job start together, because the launchers have met before. A
    process that started this much earlier belongs to the life before."""
    init_missing_limit_s: float = 8.0
    """Waiting in init_process_group for a rank of which no process was ever seen. The shells of a
    loop, or a parent that spawns, start all ranks within this time."""
    init_late_warning_s: float = 10.0
    """Waiting there for a rank that is alive and works. Imports differ by a few seconds."""
    init_still_line_slack_s: float = 1.0
    """A rank is at one line for `still_limit_s` less this: the first report of that line came up to
    a second later."""
    init_still_process_slack_s: float = 2.0
    """The same of a process without an agent, which the relay looks at every two seconds."""
    init_late_critical_s: float = 300.0
    """... and a wait this long is not an import. Half of the group's own timeout if shorter."""
    init_missing_critical_s: float = 60.0
    """... while the process that started the others lives and may start more. Launchers pause
    between ranks, for tens of seconds at most."""
    store_dial_critical_s: float = 30.0
    """A launcher has looked for the store for this time. Nodes start within it, and torchrun gives
    up after a minute."""
    candidate_asleep_s: float = 5.0
    """A process that has not joined and has not woken for this time makes no progress. A slow
    import wakes about once a second."""
    init_stuck_limit_s: float = 15.0
    """All ranks are in init_process_group and make no progress. It takes a second after the last
    one has come, and ten more where a name server does not answer."""
    init_stuck_rank_s: float = 0.05
    """... and this much more for each rank: thousands take turns at the store."""
    init_stuck_critical_s: float = 60.0
    """... and critical from here on."""
    alone_s: float = 30.0
    """Ranks have trained without a process group for this time. A warm-up before it is shorter."""
    alone_steps: int = 20
    """... with at least so many steps each."""
    moving_s: float = 5.0
    """A rank moves if it progressed within this time, or within its own step if that is longer."""
    step_old_s: float = 2.0
    """After this time without progress, and after three steps, a rank's step time and the job's
    speed are out of date. Reports come once or twice a second."""
    step_old_factor: float = 3.0
    """... of its own steps, and so many of them without progress. Steps vary by a factor of two."""
    window_s: float = 10.0
    """Ratios (waiting, loader, activities) are measured over this time, at most a minute."""
    window_min_s: float = 2.0
    """A shorter time has too few samples (4 a second) for a ratio."""
    no_progress_s: float = 20.0
    """No step, batch or collective on any rank for this time, or for `no_progress_step_factor`
    steps, is a warning. Epochs end, files are saved and workers start within it."""
    no_progress_step_factor: float = 10.0
    """... of the longest usual step."""
    no_progress_habit_factor: float = 1.5
    """... or this many times the second longest pause that has ended. What has happened twice is
    usual, such as a validation. Critical at the earliest at this many times the warning's limit."""
    no_progress_critical_s: float = 60.0
    """... and critical from here on where no rank makes progress."""
    no_progress_patient_s: float = 300.0
    """... critical from here on if something explains a long pause: some ranks compute, a
    checkpoint is saved, code is compiled, a server is asked. A minute is usual then."""
    poll_wakes_per_s: float = 0.4
    """A thread that wakes this often polls: a loop with `sleep(2)` does, one long sleep not."""
    poll_sleep_s: float = 60.0
    """... and so does a thread whose sleep ends within this time. A master looks for work at least
    once a minute; a thread that looks for nothing sleeps for an hour, or for ever."""
    idle_habit_s: float = 2.0
    """Workers that have twice waited this long for orders are a task farm. The broadcast of a
    simulation, or of a training that gets its samples from a server, takes milliseconds."""
    idle_stay_factor: float = 5.0
    """... or workers of a rank that asks for work, up to this many times its longest stay at the
    same line so far, if that was as long. Work comes when it comes."""
    idle_first_collectives: int = 16
    """... or workers that have made no more collectives: the first order may take long to come. A
    training has made more after a few steps."""
    appear_snapshots: int = 2
    """A finding appears after this many agreeing snapshots, half a second apart."""
    clear_snapshots: int = 3
    """... and disappears after this many snapshots without it."""
    clear_rates_s: float = 30.0
    """... but a finding about a share of the time, or about one phase of an epoch, only after this
    time. A validation, a checkpoint or a new epoch hides it and does not fix it."""
    input_bound_ratio: float = 0.4
    """Share of the step spent waiting for data. Above it the loader is the first thing to fix."""
    input_bound_again_factor: float = 1.5
    """... an info for this many times its longest time so far, once a job has recovered from it,"""
    input_bound_again_most_s: float = 120.0
    """... but no longer than this: the start of an epoch is shorter."""
    input_bound_others: float = 0.5
    """If most ranks are input-bound, those above this share of the threshold are named too."""
    input_bound_steps: int = 5
    """Iterations in the window. An epoch's first batch, with its worker start, is no evidence."""
    input_bound_depth_ratio: float = 0.5
    """Share of the prefetched batches that lie ready. Above it the rank does not wait for them."""
    input_bound_window_s: float = 8.0
    """... and the window is at least this long."""
    input_bound_one_ratio: float = 0.75
    """Share of the samples in which the same worker must deliver the next batch. If three workers
    are all slow, each of them is waited for in a third of the samples."""
    straggler_ratio: float = 0.1
    """Share of each step in which others wait. Below it ranks differ by data and cores."""
    straggler_least_ms: float = 1.0
    """... and at least this long. A thread that wakes up late is late by tenths of it."""
    straggler_strong_ratio: float = 0.3
    """From here on one read of the arrivals and a few steps are enough; below it, two reads."""
    straggler_critical_ratio: float = 0.5
    """Most of the step is waiting for one rank."""
    straggler_steps: int = 16
    """By chance a rank is last in most of this many steps once in 40 reads, with two ranks and
    before `straggler_errors` is asked."""
    straggler_few_steps: int = 8
    """... in jobs with hundreds of collectives a step, because the recorder holds no more. Then a
    second read has to agree."""
    straggler_weak_steps: int = 64
    """... where the others wait for less than `straggler_strong_ratio` of the step."""
    straggler_late_ratio: float = 0.6
    """The same ranks are late in this share of the steps. What happens every few steps (validation,
    saving, logging) is a cost by choice, and with varying lengths another rank is last each
    time."""
    straggler_gap_part: float = 0.25
    """... late by this part of the usual wait. Ranks are never there at the same microsecond."""
    straggler_stall_ratio: float = 0.05
    """Share of the steps, the longest, that count no more than the next: a stall is no habit."""
    straggler_errors: float = 6.0
    """The mean wait is this many standard errors above zero. With 16 steps chance does that once in
    10^5 reads, with 64 once in 10^7."""
    straggler_span_s: float = 5.0
    """Steps over this time show that the wait persists. With less, a second read has to agree."""
    straggler_rounds_apart_s: float = 1.8
    """Two reads of the arrivals are independent if this time lies between them."""
    straggler_crowded_apart_s: float = 8.0
    """... of a rank that lacks CPU time for longer than others wait: neighbours come and go."""
    straggler_stale_s: float = 150.0
    """The relay asks at least once a minute while ranks wait unevenly. After this time without an
    answer the arrivals are out of date."""
    straggler_gone_ratio: float = 0.25
    """The straggler is gone if the waits differ by less than this share of what arrivals said."""
    stages_ratio: float = 0.1
    """Share of a group's calls that are send and recv. From here on its members are stages of a
    pipeline, which wait for each other by design."""
    cause_part: float = 0.5
    """A cause explains at least this part of the others' wait."""
    cause_held_part: float = 0.35
    """... a held GIL less: a sample near its end is not late enough to show it."""
    cause_cpu_part: float = 0.75
    """Missing CPU time is no cause below this part of the rank's extra time in one function."""
    cause_code_part: float = 0.25
    """... for a function even less: its samples cover half a minute, and it may be slow lately."""
    cause_faults_per_s: float = 50.0
    """Pages read from a disk. A process in memory has next to none, one that swaps hundreds."""
    cause_faults_factor: float = 4.0
    """... and this many times those of the ranks that wait: a host that reads its files anew does
    so for all."""
    spot_least_ratio: float = 0.05
    """Share of a rank's samples at one place. Below this it is only one sample or two."""
    sync_bound_ratio: float = 0.4
    """Share of a rank's time in collectives where all have arrived: communication, not waiting."""
    sync_bound_calls: int = 12
    """... and this many of them in a step. A few large ones are the price of the model's size, many
    small ones are not."""
    sync_bound_reduce_ratio: float = 0.75
    """... of which this share are all_reduce, barrier or have a root. Sharded models gather by
    design."""
    sync_bound_uneven_factor: float = 1.25
    """... and no rank communicates less than the usual one by more than this: a rank that hardly
    waits is not held up by the network."""
    sync_bound_crowded_ratio: float = 0.1
    """Share of the time that the ranks wait for a CPU. From here on that is reported beside the
    communication, which it makes longer."""
    oversubscribed_ratio: float = 0.4
    """Share of the time in which half of a host's ranks are ready to run and have no CPU. Four
    ranks that compute half of the time on two cores reach 0.3, four that are pinned to one core
    0.7."""
    oversubscribed_own_ratio: float = 0.5
    """... and the ranks use this share of their CPUs: a neighbour's load is not theirs to fix."""
    oversubscribed_room_cores: float = 0.25
    """... for each rank: CPU time used and waited for may exceed the CPUs by this much and fit."""
    oversubscribed_threads_factor: float = 2.0
    """... or this many threads for each CPU run or are ready to run, over all threads of the ranks.
    Those alone would not fit, even on a host without other processes. OpenMP's threads lack CPUs
    while the main thread, asleep until they are done, lacks none."""
    oversubscribed_threads_ratio: float = 0.2
    """... and the main threads wait for a CPU this share of the time. Less costs little."""
    oversubscribed_threads_own_ratio: float = 0.2
    """... and the ranks get this share of the CPUs at least. Where others have nearly all, each
    thread that wakes for a moment is ready for long, so ready threads are no measure."""
    foreign_cores: float = 0.5
    """Cores that other processes use of CPUs that are all in use. From here on that is reported
    beside what the job itself does."""
    oversubscribed_window_s: float = 20.0
    """... over this time, in a rank that has been running since before. Imports and worker starts
    are crowded, and pass."""
    oversubscribed_window_ratio: float = 0.9
    """... or most of that: reports come every half second, so the window is rarely full."""
    throttled_ratio: float = 0.2
    """Share of the time in which their cgroup's CPU quota holds a host's ranks."""
    throttled_told_ratio: float = 0.05
    """... from here on it is reported beside another finding, and so is the share that the
    hypervisor gives to others. Below, it changes nothing."""
    memory_low_ratio: float = 0.04
    """Share of the memory (host, cgroup limit, /dev/shm) that is left: the OOM killer is one
    allocation away."""
    memory_low_bytes: float = 4 * 2.0**30
    """... and no more than this: on a large host 4 % is enough."""
    shm_low_ratio: float = 0.1
    """Share of a small /dev/shm that is left: 64 MiB, what a container gets by default, hold a few
    batches."""
    shm_low_bytes: float = 16 * 2.0**20
    """... and no more than this: the batches that workers have ready."""
    memory_stall_ratio: float = 0.2
    """Share of the time in which some thread of the host waits for memory (reclaim, swap)."""
    address_low_ratio: float = 0.06
    """Share of RLIMIT_AS or RLIMIT_DATA that is left, and no more than `memory_low_bytes`. torch
    maps hundreds of megabytes at once, and beyond the limit the next allocation raises."""
    pids_full_ratio: float = 0.9
    """Share of the threads that a cgroup may have. DataLoader workers have dozens."""
    files_full_ratio: float = 0.9
    """Share of a rank's descriptors. DataLoader workers hand tensors over by dozens of them."""
    disk_full_ratio: float = 0.02
    """Share of a disk that is free, or of its inodes. What root has reserved is not free."""
    disk_full_bytes: float = 2 * 2.0**30
    """... and no more than this: the next checkpoint may not fit."""
    save_ends_s: float = 5.0
    """A rank that leaves this soon after a save that failed, without an uncaught exception, left
    because of it. Frameworks catch the exception, print it and exit."""
    disk_full_inodes: int = 100_000
    """... and no more inodes than this: caches of small files use this many in an hour."""
    feed_steps: int = 8
    """Optimizer steps between batches of one loader. Then the loader feeds the training."""
    feed_passed_over: float = 0.9
    """Batches fetched by each rank in a step. From here on each may use only its share of them."""
    caught_windows: int = 6
    """Windows of a quarter of a second, one in five seconds, in each of which a rank caught the
    same exception. An exception that comes by chance in half of the windows is in all of one rank's
    and in none of another's once in 2,000 half minutes."""
    caught_recent_windows: int = 3
    """The last of these windows, which shows whether the exception is still being caught. Ranks
    that wait still report exceptions that they caught before."""
    ras_fresh_s: float = 60.0
    """An older answer of NCCL's RAS service is out of date. While something is stuck it is asked
    every ten seconds."""
    ras_same_s: float = 9.0
    """For this time it has reported the same launches, in two answers at least. A rank that trains
    in C would have launched more."""
    gpu_silent_s: float = 10.0
    """The driver is asked each second. After ten missed answers the last numbers are not shown."""
    gpu_foreign_ratio: float = 0.05
    """Share of a GPU's memory that another's process holds. The context of a display server or of
    an idle notebook is below."""
    gpu_memory_low_ratio: float = 0.03
    """Share of a GPU's memory that is left, where allocations failed or others hold a part. A full
    GPU alone is how torch works."""
    gpu_retries: int = 3
    """Allocations within half a minute that succeeded only after cached memory had been released,
    or not at all. One or two are a large batch."""
    gpu_refused_shown: int = 1
    """The row of a GPU is marked from this many such allocations on. It is no finding yet."""
    gloo_bytes: int = 4 << 20
    """Gradients that go through gloo. Fewer cost less than the milliseconds of a step."""
    gpu_spare_ratio: float = 0.2
    """Share of what torch has reserved that is not in use: this much is fragmentation."""
    gpu_throttled_s: float = 5.0
    """Clocks are held down for this time. Peaks of load touch the power cap for a moment."""
    gpu_slow_ratio: float = 0.85
    """Share of the clock of the job's GPUs of that kind. Equal ones differ by a few percent."""
    step_slower_factor: float = 1.25
    """A step so much longer than the shortest is a line of evidence. Below that it is noise."""
    gpu_load_ratio: float = 0.85
    """Share of a GPU's power. GPUs that draw less have less to do and run faster for that, so their
    clocks are no measure."""
    gpu_busy_ratio: float = 0.5
    """Share of the time in which some kernel ran. The clocks of an idle GPU say nothing."""
    gpu_fresh_s: float = 3.0
    """Numbers that repeat because the driver has not answered for this time are in no mean."""
    gpu_foreign_s: float = 10.0
    """A process on a GPU that is not known as the job's. The list of processes is read every five
    seconds and the children of a rank every few, so a process that came or went a moment ago may be
    one of them."""
    gpu_mean_s: float = 10.0
    """Power and use of a GPU are means over this time. Steps of a second or two, with their
    gradient exchange, are even by then."""
    gpu_told_ratio: float = 0.7
    """... and this share of the reports of that time has to have fresh numbers."""
    gpu_wait_busy_ratio: float = 0.95
    """An NCCL kernel that waits is a kernel that runs, so such a GPU is busy all the time."""
    gpu_wait_power_ratio: float = 0.6
    """Share of the power that a GPU draws while it computes. A waiting kernel draws a quarter to a
    half of it; equal GPUs under one load differ by a tenth."""
    gpu_wait_cap_ratio: float = 0.5
    """... and of its power cap. Kernels that read much memory and compute little draw more than
    half of it, those that wait do not."""
    gpu_wait_pending_ratio: float = 0.5
    """Share of samples with an open collective. Below it, the program's own kernel draws little."""
    gpu_wait_job_s: float = 60.0
    """A job this young compiles, warms up and loads, which it does not do at every step."""
    gpu_wait_steps: int = 2
    """Iterations over the time compared. A rank that makes none may evaluate or save."""
    gpu_wait_steps_ratio: float = 0.1
    """... and their numbers differ by this share, or by one. Other members do other work."""
    gpu_wait_calls: int = 8
    """... and collectives enqueued in each span. None are while one rank evaluates alone."""
    gpu_wait_members: int = 3
    """GPUs compared. With only two, nobody can know which one is normal."""
    gpu_wait_most_ratio: float = 0.95
    """Share of the others that have to draw that little: of many, one may have its own problem."""
    gpu_wait_told_ratio: float = 0.75
    """Share of a group's members that have to be known. All may wait for an unknown one."""
    gpu_wait_below_peak_ratio: float = 0.8
    """Share of the most that they drew. Others that wait for a GPU with low clocks drew more."""
    waiting_s: float = 1.0
    """A rank is `waiting` once a collective is open for this time. Younger ones are usual."""
    stack_wait_s: float = 1.0
    """Read from outside, a rank waits after so long in one call. Two looks are a second apart."""
    stack_apart_looks: int = 24
    """... and one that runs takes part in no collective after so many looks elsewhere in a row."""
    stack_late_looks: int = 12
    """A straggler is named from outside after so many looks; a third as many at each waiter, ..."""
    stack_late_s: float = 4.0
    """... over so long."""
    stack_late_ratio: float = 0.1
    """It is in a call for others in this share of its looks at most."""
    stack_one_wait_ratio: float = 0.25
    """Of a waiter's looks, one wait has this share at most: a validation is one long wait."""
    stack_late_wait_ratio: float = 0.5
    """The others together are in collectives in this share of their looks, each in two thirds. If
    rank 0 validates every few seconds, the others reach 0.4."""
    stack_late_chance: float = 1e-4
    """Chance finds a rank that waits like the others so seldom in a call less often than this."""
    nccl_wait_s: float = 1.0
    """On NCCL the host runs ahead, so something is always open for a moment. Only a collective that
    stays open is shown as a wait."""
    watchdog_ratio: float = 0.9
    """Share of its timeout that a collective has waited at SIGABRT: torch's watchdog did it."""
    comm_error_after_s: float = 2.0
    """A backend's error is a finding after this time. A death elsewhere is known by then."""
    comm_error_leaving_s: float = 5.0
    """The same where a rank has left its process group and its process lives. A busy host takes
    seconds to end a process."""
    comm_error_with_it_s: float = 0.5
    """Reports are this far apart. A rank that left within this time after the first error may have
    caused it."""
    store_clock_s: float = 2.0
    """File servers' clocks differ. A job's store is not older than its first process by more."""
    dry_before_progress_s: float = 2.0
    """A rank whose loader was exhausted longer than this before its last progress stopped later."""
    last_report_s: float = 2.0
    """A rank on its way out is not judged before its last report, which says what it did last."""
    gil_wakes_per_s: float = 50.0
    """A thread that waits for the GIL wakes every 5 ms. One that sleeps in C with it does not."""
    busy_ratio: float = 0.5
    """Cores used by a thread that computes: one that is ready and uses less lacks a CPU. Also by a
    process without children that computes, though it sleeps now."""
    spinning_ratio: float = 0.5
    """Cores used by a rank in a call of MPI that spins. A library that sleeps there uses none."""
    same_line_s: float = 3.0
    """Six reports in which a busy main thread was at the same line, with the same call below it."""
    same_line_quiet_ratio: float = 0.8
    """... and for most of that time in a job without progress: its main thread spins."""
    stand_most_ranks: int = 512
    """With more ranks it is not asked at each snapshot whether all are at one place."""
    together_s: float = 2.0
    """Signals to all ranks within this time are one act: Ctrl-C, scancel, a time limit."""
    interrupted_together_s: float = 5.0
    """The same for Ctrl-C. Python raises KeyboardInterrupt only when the rank leaves its C code,
    which takes seconds on a busy host."""
    went_on_s: float = 1.0
    """Progress this much later than an exception means that a thread still trains. An agent notes a
    step up to a quarter of a second after it was made."""
    noticed_late_s: float = 2.0
    """A relay may notice the end of a process this late, on a host with ten times its load."""
    cancel_gap_s: float = 0.06
    """A launcher that passes on a signal ends all ranks within milliseconds. One that cleans up
    after a death polls every 100 ms first."""
    cancelled_because_s: float = 10.0
    """A finding that was critical this shortly before a job was cancelled is reported as present
    until then. Ranks that clean up on SIGTERM end a few seconds after it."""
    ras_stuck_s: float = 2.0
    """NCCL's RAS is asked once something is stuck for so long. Agents name it within a second."""
    relay_silent_s: float = 2.5
    """A viewer says that a relay is silent. It reports every second, and this is shorter than
    `report_silent_s`: otherwise its ranks would look silent first."""
    relay_hopeless_s: float = 90.0
    """`ddtop watch` gives up on a relay that is silent for this time. Dead ones are replaced."""
    clock_apart_s: float = 2.0
    """The clocks of a viewer and of a job, or of a file and a job, are the same if they differ by
    less. The times in frames and files are no more exact than that."""
    viewer_late_s: float = 3.0
    """A viewer says that it is behind: the longest pause between two looks."""
    first_verdict_looks: int = 4
    """Looks until a followed job is said to be healthy. The first ones do not know how much CPU a
    rank uses, and without that none is blamed: a relay reports its host once a second."""
    contact_settles_s: float = 5.0
    """After a relay is heard again nothing clears for this time. Agents find it within seconds, and
    a finding stands after one more."""
    place_old_s: float = 10.0
    """Read from outside, a place that has not been seen again for this time is not shown."""
    goodput_step_factor: float = 2.0
    """A step longer than so many usual steps is time without progress, even before it ends."""
    goodput_gap_s: float = 30.0
    """Times are not added up over a longer pause between two looks, which nobody has seen."""
    job_now_s: float = 10.0
    """The strip compares the mean of this time with the past, not one lucky or unlucky step."""
    job_warm_s: float = 20.0
    """The start of a job, which is left out: imports, caches, autotuning."""
    job_first_s: float = 120.0
    """What was measured after that and in this time is how the job began."""
    job_lately_s: float = 600.0
    """The past, for "in the last 10 min"; half of it has to be known."""
    job_apart_s: float = 60.0
    """Spans of time that are less apart are not compared."""
    job_change_ratio: float = 0.05
    """Smaller changes of a number, or of a share in parts of the whole, are noise."""
    cancelled_before_s: float = 1.0
    """An event that began less than this time before the end of a job belongs to the end."""
    wait_shown_s: float = 2.0
    """A wait in a group is shown from this time on. Shorter ones are the rhythm of the training."""
    group_stuck_s: float = 5.0
    """A group in which ranks wait this long is listed before the others."""
    wait_fresh_s: float = 2.0
    """Four missed reports: a rank that reported a wait longer ago may be anywhere by now, so the
    text beside its stack does not name the wait."""
    host_report_old_s: float = 5.0
    """Numbers of a host are marked as old. A relay reports once a second."""
    gpu_free_ratio: float = 0.05
    """Share of its memory, and of its time, that is used on a GPU that counts as free: a display
    server, a forgotten context."""
    check_shm_bytes_per_rank: int = 128 << 20
    """`ddtop check` wants this much of /dev/shm for each rank of a node. NCCL and the workers of a
    DataLoader put their buffers there; a container has 64 MiB in all by default."""
    check_files: int = 1024
    """Open files that a rank needs at least. This is the default of most systems."""
    check_files_per_rank: int = 4
    """... and this many for each rank of the job: sockets of the store and of the backends."""
    check_tasks_per_rank: int = 64
    """Threads that a rank needs: torch, its backends and the workers of a DataLoader."""
    check_clock_s: float = 1.0
    """Clocks of nodes with a working time service differ by milliseconds."""

    def changes(self) -> tuple[tuple[str, float, float], ...]:
        """(name, value, our value) of each threshold that somebody has changed."""
        return tuple(
            (one.name, getattr(self, one.name), getattr(POLICY, one.name))
            for one in fields(self)
            if getattr(self, one.name) != getattr(POLICY, one.name)
        )


POLICY = Policy()
