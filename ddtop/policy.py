"""Every threshold, with its unit and its reason. Rules and states read them here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """The thresholds; frozen, so that two viewers with the same records see the same verdict."""

    gone_limit_s: float = 1.0
    """Waiting for a process that has ended: it will not come, one second lets the launcher's own news arrive."""
    stopped_limit_s: float = 2.0
    """Waiting for a process in state T: debuggers and job control stop one briefly."""
    still_limit_s: float = 5.0
    """Waiting for a rank that stands still: longer than page-cache misses, GC and a slow file open."""
    stall_alone_limit_s: float = 30.0
    """Uninterruptible sleep of a rank that nobody waits for yet: a busy file server recovers within this."""
    working_limit_s: float = 5.0
    """Waiting for a rank that visibly works, at least; `healthy_wait_factor` usually asks for more."""
    healthy_wait_factor: float = 3.0
    """... and this many times the longest wait that ended well lately: a job that validates each epoch is used to it."""
    working_critical_s: float = 60.0
    """A rank that works while others wait is a warning up to here: an endless loop is a hang too."""
    working_critical_factor: float = 5.0
    """... or this many times the longest healthy wait, whichever is later."""
    still_habit_factor: float = 1.5
    """A rank that stands still is a warning up to this many times the second longest healthy wait: where each round waits for
    rollouts or for a server, the next wait is not the end; a single long wait, at the start or behind a broken network, is no habit."""
    timeout_critical_ratio: float = 0.5
    """... but no later than at this share of the group's own timeout."""

    cpu_working_ratio: float = 0.05
    """Cores used, over `cpu_window_s`: a sleeping rank shows below 0.01, one decoding images above 0.3."""
    cpu_waning_ratio: float = 0.025
    """From here up to that the mean over `window_s` decides: a rank near the limit must not stand at every other look."""
    cpu_window_s: float = 2.0
    io_working_bytes_per_s: float = 65536.0
    """A file being read or written; heartbeats and polls of a sleeping process stay below 1 KB/s."""

    socket_working_switches_per_s: float = 5.0
    """A main thread that reads from a socket and wakes this often is being served: a stuck read does not wake at all, a
    long poll about once a second."""

    report_silent_s: float = 3.0
    """Six missed reports: only C code that holds the GIL, or a stopped process, does that."""
    host_quiet_s: float = 3.0
    """A relay reports once a second, and hubs pass reports on a few times a second: after three missed ones its ranks are not judged
    by what they said before."""
    host_lost_s: float = 8.0
    """Nothing of a whole host for so long, while the hub is heard: a relay that died is replaced within about 6 s."""
    host_lost_step_factor: float = 3.0
    """... of the longest usual step: a collective with a rank of that host that completed within this time shows that the rank
    takes part."""
    relay_away_s: float = 15.0
    """For so long what a relay saw last of a process is what is known of it: unknown is neither work nor standing still."""
    first_look_s: float = 3.0
    """A relay that was just heard for the first time needs two looks a second apart to tell who works."""
    clock_matters_s: float = 0.05
    """Reports of a host whose clock is off by less are taken as they are: no rule compares reports of two hosts to less."""
    clock_error_ratio: float = 0.25
    """Of what the others are said to wait: so far both clocks together may be wrong. A clock that is off makes a whole host late."""
    clock_even_ratio: float = 0.02
    """... of a step, where it is how even the ranks are that is asked."""
    clock_shown_s: float = 1.0
    """A clock that is off by more is worth a word: log files of that host do not fit to the others'."""
    restart_apart_s: float = 10.0
    """Processes of one life of a job start together: the launchers have met before. Whose started so much earlier is of the one before."""
    init_missing_limit_s: float = 8.0
    """Waiting in init_process_group for a rank of which no process was ever seen: the shells of a loop, or a spawning parent,
    start all within this."""
    init_late_warning_s: float = 10.0
    """Waiting there for a rank that is alive and works: imports of a few seconds more than the others' are no news."""
    init_still_line_slack_s: float = 1.0
    """A rank is at one line for `still_limit_s` less this: the first report of that line came up to a second later."""
    init_still_process_slack_s: float = 2.0
    """The same of a process without an agent, which the relay looks at every two seconds."""
    init_late_critical_s: float = 300.0
    """... and this is no import any more; half of the group's own timeout where that is shorter."""

    init_missing_critical_s: float = 60.0
    """... while what started the others lives and may start more: launchers pause between ranks, for tens of seconds at most."""
    candidate_asleep_s: float = 5.0
    """A process that has not come yet and has not woken for so long stands still; a slow import wakes about once a second."""

    init_stuck_limit_s: float = 15.0
    """All are in there and stand still: from the last one's coming on it takes a second, and where a name server does not answer ten more."""
    init_stuck_rank_s: float = 0.05
    """... and so much more for each rank: thousands take their turns at the store."""
    init_stuck_critical_s: float = 60.0

    moving_s: float = 5.0
    """A rank is moving if something of it moved within this time (or within its own step, where that is longer)."""
    window_s: float = 10.0
    """Ratios (waiting, loader, activities) are over this time."""
    window_min_s: float = 2.0
    """Below this there are too few samples (4 a second) for a ratio."""

    no_progress_s: float = 20.0
    """No step, batch or collective on any rank for so long, or for `no_progress_step_factor` steps, is a warning: epochs end,
    files are saved and workers start within this."""
    no_progress_step_factor: float = 10.0
    """... of the longest usual step."""
    no_progress_habit_factor: float = 1.5
    """... or this many times the second longest pause that has ended: what has happened twice is usual, such as a validation."""
    no_progress_critical_s: float = 60.0
    """... and critical from here on where every rank stands still."""
    no_progress_patient_s: float = 300.0
    """... critical from here on where something explains a long pause: some ranks compute, a checkpoint is saved, code is
    compiled, a server is asked. A minute is not unusual there."""
    poll_wakes_per_s: float = 0.4
    """A thread that sleeps and wakes this often looks for something: a loop with `sleep(2)` does, one long sleep does not."""
    idle_habit_s: float = 2.0
    """Where calls of MPI have a rhythm, workers that have waited so long for orders twice are a farm; a simulation's broadcast
    takes milliseconds."""

    appear_snapshots: int = 2
    """A finding appears after this many agreeing snapshots, half a second apart."""
    clear_snapshots: int = 3
    clear_rates_s: float = 30.0
    """... of what is a share of the time, or is seen in one phase of an epoch, only after so long: a validation, a checkpoint or a
    new epoch hides it, and does not mend it."""

    input_bound_ratio: float = 0.4
    """Share of the step spent waiting for data: above it the loader is the first thing to mend."""
    input_bound_others: float = 0.5
    """Where most ranks are input-bound, those above this share of the threshold are named with them."""
    input_bound_steps: int = 5
    """Iterations in the window: an epoch's first batch with its worker start is no evidence."""
    input_bound_window_s: float = 8.0
    input_bound_one_ratio: float = 0.75
    """Of the looks one worker owes the batch: of three workers that are all slow one is waited for in a third of them."""

    straggler_ratio: float = 0.1
    """Of each step the others wait at least so long for the slow ranks: below it ranks differ by their data and their cores."""
    straggler_least_ms: float = 1.0
    """... and at least this long: a thread that wakes up later than others is late by tenths of it."""
    straggler_strong_ratio: float = 0.3
    """From here on one read of the arrivals is enough, and few steps; below it two are asked for."""
    straggler_critical_ratio: float = 0.5
    """Most of the step is waiting for one rank."""
    straggler_steps: int = 16
    """The last one by chance in most of so many steps: with two ranks once in 40 reads, before `straggler_errors` is asked."""
    straggler_few_steps: int = 8
    """... of jobs with hundreds of collectives a step the recorder holds no more; then a second read has to agree."""
    straggler_weak_steps: int = 64
    """... where the others wait less than `straggler_strong_ratio` of the step."""
    straggler_late_ratio: float = 0.6
    """In so many of the steps the same ranks are late: what happens every few steps (validation, saving, logging) is a cost by
    choice, and of lengths that vary another rank is the last each time."""
    straggler_errors: float = 6.0
    """How many standard errors the mean wait is above nought. With 16 steps chance does that once in 10^5, with 64 once in 10^7."""
    straggler_span_s: float = 5.0
    """Steps over so long are persistent by themselves; of fewer a second read has to say the same."""
    straggler_rounds_apart_s: float = 1.8
    """Two reads of the arrivals are two opinions if so much time lies between them."""
    straggler_crowded_apart_s: float = 8.0
    """... of a rank that lacks CPU time for longer than the others wait for it: neighbours come and go."""
    straggler_stale_s: float = 150.0
    """The relay asks at least once a minute while ranks wait unalike: after two and a half nobody has answered any more."""
    straggler_gone_ratio: float = 0.25
    """If the sampled waits differ by less than this share of what the arrivals said, it is over."""

    stages_ratio: float = 0.1
    """Of a group's calls are send and recv: from here on its members are stages of a pipeline, which wait for each other by design."""
    cause_part: float = 0.5
    """A cause explains at least this part of what the others wait."""
    cause_held_part: float = 0.35
    """... a held GIL less: a look that comes in its last milliseconds is not late enough to tell."""
    cause_cpu_part: float = 0.75
    """Missing CPU time is no cause if it is less than this part of what the rank is more in one function."""
    cause_code_part: float = 0.25
    """... of a function less still: its looks are those of half a minute, of which it may have been slow for the end only."""
    cause_faults_per_s: float = 50.0
    """Pages from a disk: a process in memory has next to none, one that swaps hundreds."""
    cause_faults_factor: float = 4.0
    """... and as many times those of the ranks that wait: a host that reads its files anew does so for all."""
    spot_least_ratio: float = 0.05
    """Of a rank's looks at one place: below it is one look or two."""

    sync_bound_ratio: float = 0.4
    """Of its time a rank is in collectives for which all have arrived: communication, not waiting for each other."""
    sync_bound_calls: int = 12
    """... and so many of them a step: few large ones are the price of the model's size, many small ones are not."""
    sync_bound_reduce_ratio: float = 0.75
    """... of which so many are all_reduce: sharded models gather and scatter each layer, that is what they are."""
    sync_bound_uneven_factor: float = 1.25
    """... and no rank communicates less than the usual one by more than this: a rank that hardly waits is not held up by the
    network."""
    sync_bound_crowded_ratio: float = 0.1
    """Of the time the ranks wait for a CPU: from here on that is told beside the communication, which it makes longer."""
    oversubscribed_ratio: float = 0.4
    """Of the time half of a host's ranks are ready to run and have no CPU; four ranks that compute half
    of the time on two cores show 0.3, four that are pinned to one 0.7."""
    oversubscribed_own_ratio: float = 0.5
    """... and of the CPUs that they may use it is they who use so much: a neighbour's load is not theirs to mend."""
    oversubscribed_room_cores: float = 0.25
    """... a rank: what they use, over two seconds, and what their main threads wait for, over twenty, may be so much more than the
    CPUs there are and still fit."""
    oversubscribed_threads_factor: float = 2.0
    """... or so many threads for each CPU run or are ready to run, all threads of the ranks counted: those alone would not fit, whoever
    else is there. OpenMP's threads lack CPUs while the main thread, asleep until they are done, lacks none."""
    oversubscribed_threads_ratio: float = 0.2
    """... and the main threads wait so much for a CPU: below it, threads that are too many cost little."""
    foreign_cores: float = 0.5
    """Of CPUs that are all in use somebody else has so many: from here on that is told beside what the job does itself."""
    oversubscribed_window_s: float = 20.0
    """... over so long, in a rank that has been running since before: imports and worker starts are crowded, and pass."""
    oversubscribed_window_ratio: float = 0.9
    """... or most of that: reports come every half second, so the window is rarely full."""
    throttled_ratio: float = 0.2
    """Of the time their cgroup's CPU quota holds a host's ranks."""
    throttled_told_ratio: float = 0.05
    """... from here on it is told beside another finding, and so is what the hypervisor gives to others: below, it changes nothing."""
    memory_low_ratio: float = 0.04
    """Of the memory (host, cgroup limit, /dev/shm) that is left: the OOM killer is one allocation away."""
    memory_low_bytes: float = 4 * 2.0**30
    """... and no more than this: 4 % of a large host are room enough."""
    memory_stall_ratio: float = 0.2
    """Of the time some thread of the host waits for memory (reclaim, swap): it thrashes."""
    address_low_ratio: float = 0.06
    """Of RLIMIT_AS or RLIMIT_DATA that is left, and no more than `memory_low_bytes`: torch maps hundreds of megabytes at once, and beyond
    the limit the next allocation raises."""
    pids_full_ratio: float = 0.9
    """Of the threads that a cgroup may have: a rank starts dozens with its DataLoader workers."""
    files_full_ratio: float = 0.9
    """Of the descriptors that a rank may open: DataLoader workers hand tensors over as descriptors, dozens at a time."""
    disk_full_ratio: float = 0.02
    """Of a disk that is free, or of its inodes: what root keeps for itself is not counted."""
    disk_full_bytes: float = 2 * 2.0**30
    """... and no more than this: the next checkpoint may not fit."""
    disk_full_inodes: int = 100_000
    """... of its inodes no more than this: caches of small files take so many an hour."""
    feed_steps: int = 8
    """Optimizer steps between batches of one loader: then it feeds the training."""
    feed_passed_over: float = 0.9
    """Batches taken a step and rank: from here on each rank may use its share of them only."""
    caught_windows: int = 6
    """Looks of a quarter of a second, one in five seconds, each of which found a rank catching the same exception: one that
    comes by chance in half of the looks is in all of one rank's and in none of another's once in 2,000 half minutes."""

    caught_recent_windows: int = 3
    """Of these looks the last: what is caught still. Ranks that wait have not yet forgotten what they caught before."""

    ras_fresh_s: float = 60.0
    """An older answer of NCCL's service says nothing of now; while something stands it is asked every ten seconds."""
    ras_same_s: float = 9.0
    """For so long it has told the same launches, in two answers at least: in between whoever trains in C would have launched more."""
    gpu_silent_s: float = 10.0
    """The relay asks the driver once a second: after ten missed answers what it said last is not shown as what is."""
    gpu_foreign_ratio: float = 0.05
    """Of a card's memory that another's process holds: a display server's or an idle notebook's context is below."""
    gpu_memory_low_ratio: float = 0.03
    """Of a card's memory that is left, where allocations failed or others hold a part: a full card alone is how torch works."""
    gpu_retries: int = 3
    """Allocations within half a minute that came only after cached memory had been given back, or not at all: one or two are a large batch."""
    gpu_refused_shown: int = 1
    """The row of a GPU is marked from so many such allocations on; it is no finding yet."""
    gloo_bytes: int = 4 << 20
    """Of gradients that go through gloo: below it a step loses less than the milliseconds that it takes anyway."""
    gpu_spare_ratio: float = 0.2
    """Of what torch has reserved that is not in use: so much is fragmentation."""
    gpu_throttled_s: float = 5.0
    """Clocks held down for so long: peaks of load touch the power cap for a moment."""
    gpu_slow_ratio: float = 0.85
    """Of the clock of the job's other cards of that kind: alike cards under one load differ by a few percent."""
    gpu_load_ratio: float = 0.85
    """Of a card's power: others that draw less have less to do, and run faster for that; their clocks are no measure."""
    gpu_busy_ratio: float = 0.5
    """Of the time some kernel ran: the clocks of a card that idles for most of it say nothing."""
    gpu_fresh_s: float = 3.0
    """Numbers that the relay repeats because the driver has not answered since count for nothing in means."""
    gpu_foreign_s: float = 10.0
    """A process on a card that is not known as the job's: the list of processes is read every five seconds, that of a
    rank's children every few, so who came or went a moment ago may be one of them."""
    gpu_mean_s: float = 10.0
    """Power and use of a card are means over this: steps of a second or two, with their gradients' exchange, are even by then."""
    gpu_told_ratio: float = 0.7
    """... and so much of the reports of that time have to have come with fresh numbers."""
    gpu_wait_busy_ratio: float = 0.95
    """A kernel of NCCL that waits is a kernel that runs: such a card is busy all the time."""
    gpu_wait_power_ratio: float = 0.6
    """Of what a card draws while it computes: a waiting kernel takes a quarter to a half of it, alike cards under one load differ by a tenth."""
    gpu_wait_cap_ratio: float = 0.5
    """... and of its power cap: kernels that read much memory and compute little draw more than half, those that wait do not."""
    gpu_wait_pending_ratio: float = 0.5
    """Share of samples with an open collective: below it, the program's own kernel draws little."""
    gpu_wait_job_s: float = 60.0
    """A job that young compiles, warms up and loads: what it does then it does not do at every step."""
    gpu_wait_steps: int = 2
    """Iterations over the time compared: whoever makes none may evaluate or save."""
    gpu_wait_calls: int = 8
    """... and collectives put in in each span: while one rank evaluates alone the others put in none."""
    gpu_wait_members: int = 3
    """Cards compared: of two nobody can say which one is as it should be."""
    gpu_wait_most_ratio: float = 0.95
    """Of the others that have to draw that little: one or two of many may have a trouble of their own, of up to twenty none."""
    gpu_wait_told_ratio: float = 0.75
    """Of a group's members that have to be known: one that is not could be the one that all wait for."""
    gpu_wait_below_peak_ratio: float = 0.8
    """Of the most that they have drawn: others that wait for a card with low clocks have drawn more before."""
    waiting_s: float = 1.0
    """A rank is `waiting` once a collective has been open for so long. There are four samples a
    second, so a younger one is the rhythm of the training."""
    nccl_wait_s: float = 1.0
    """On NCCL the host runs ahead, so for a moment something is always open: only what stays so is shown as a wait."""
    watchdog_ratio: float = 0.9
    """Of a collective's timeout that a rank has waited when SIGABRT ends it: then it was torch's watchdog."""
    comm_error_after_s: float = 2.0
    """An error of the backend stands as a finding of its own after this: a death on another host is news by then."""
    comm_error_leaving_s: float = 5.0
    """The same where a rank has left its process group and its process lives: a busy host takes seconds to end a process."""
    comm_error_with_it_s: float = 0.5
    """Reports are that far apart: a rank that left in this time after the first error may have caused it."""
    store_clock_s: float = 2.0
    """File servers' clocks differ; a store that this job made is not older than its first process by more."""
    dry_before_progress_s: float = 2.0
    """A loader that was exhausted longer than this before the rank's last progress is not what the rank has stopped at."""
    last_report_s: float = 2.0
    """A rank on its way out is not judged for so long before its last report: what it did last is in that."""
    gil_wakes_per_s: float = 50.0
    """A thread that waits for the GIL wakes every 5 ms, one that holds it and sleeps in C does not."""
    busy_ratio: float = 0.5
    """Cores used by a process without children of which the main thread computes, though it was asleep at this instant."""
    same_line_s: float = 3.0
    """Six reports in which a busy main thread stood at the same line, with the same call below it."""
    same_line_quiet_ratio: float = 0.8
    """... and in a job without progress, for most of that time: then its main thread spins and does not work."""
    stand_most_ranks: int = 512
    """Of more it is not asked at each look whether all stand at one place."""
    together_s: float = 2.0
    """Signals to all ranks within this time are one act: Ctrl-C, scancel, a time limit."""
    went_on_s: float = 1.0
    """Progress so much later than an exception: a thread still trains. An agent notes a step up to
    a quarter of a second after it was made."""
    noticed_late_s: float = 2.0
    """So late may a relay notice the end of a process, on a host with ten times the load that it
    can bear."""
    cancel_gap_s: float = 0.06
    """A launcher that passes on a signal ends all ranks within milliseconds; one that cleans up after a death polls
    every 100 ms first."""


POLICY = Policy()
