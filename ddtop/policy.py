"""Every limit that several files read, with its unit and its reason, and the form of the others.

A limit that only one file of the model or of the rules reads is beside its code, in a block of
`Limits`. The model and the rules get all of them as a `Policy`. The end of a name is the unit. A
docstring that begins with "..." continues the one before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, TypeVar


@dataclass(frozen=True)
class Limits:
    """The limits of one file: `class Stuck(Limits, of=Kind.COLLECTIVE_STUCK)`.

    `of`: their table in the config file is `[limits.collective-stuck]`.
    """

    block: ClassVar[str]

    def __init_subclass__(cls, of: str = "") -> None:
        """Raises: TypeError: there is another block of that name."""
        if of and BLOCKS.setdefault(of, cls) is not cls:
            raise TypeError(f"two blocks of limits are called {of}: {BLOCKS[of]} and {cls}")
        cls.block = of


BLOCKS: dict[str, type[Limits]] = {}
"""By name, those whose file has been imported: `ddtop.diagnosis.limits` imports all."""
Block = TypeVar("Block", bound=Limits)


@dataclass(frozen=True)
class Waits(Limits):
    """The limits of a rule that compares itself how long a wait has lasted."""

    wait_s: float | None = None
    """The limit of its kinds. None: `still_limit_s`."""


class _Defaults(dict[type[Limits], Any]):
    def __missing__(self, block: type[Limits]) -> Any:
        return self.setdefault(block, block())


_DEFAULTS = _Defaults()


@dataclass(frozen=True, slots=True)
class Policy:
    """The limits; frozen, so that two viewers with the same records see the same verdict."""

    gone_limit_s: float = 1.0
    """Waiting for a process that has ended. In one second the launcher reports first."""
    stopped_limit_s: float = 2.0
    """Waiting for a process in state T. Debuggers and job control stop a process briefly."""
    still_limit_s: float = 5.0
    """Waiting for a rank without progress. Page-cache misses, GC and slow opens are shorter."""
    stall_alone_limit_s: float = 30.0
    """Uninterruptible sleep of a rank for which nobody waits yet. A busy file server recovers."""
    healthy_wait_factor: float = 3.0
    """Waiting for a rank that visibly works: this many times the longest wait that ended well
    lately, because a job that validates after each epoch has such waits. At least
    `limits.blame.working_limit_s`."""
    working_critical_s: float = 60.0
    """A rank that works while others wait is a warning until then. Endless loops are hangs."""
    timeout_critical_ratio: float = 0.5
    """A wait is critical no later than at this share of the group's own timeout."""
    cpu_working_ratio: float = 0.05
    """Cores used, over `cpu_window_s`. Asleep: below 0.01. Decoding images: above 0.3."""
    cpu_window_s: float = 2.0
    """CPU use and wake-ups are measured over this time."""
    io_working_bytes_per_s: float = 65536.0
    """A file is read or written. Heartbeats and polls of a sleeping process: below 1 KB/s."""
    socket_working_switches_per_s: float = 5.0
    """A main thread that reads from a socket and wakes this often is being served. A stuck read
    does not wake at all, a long poll wakes about once a second."""
    slowdown_warning_ratio: float = 0.3
    """Share of its speed that a job has lost. From here on it is a warning: a week of training
    becomes ten days."""
    report_silent_s: float = 3.5
    """Three missed reports: only C code that holds the GIL, or a stopped process, causes that."""
    host_lost_s: float = 8.0
    """No record of a host for this time while the hub is heard. Dead relays are replaced in 6 s."""
    relay_away_s: float = 15.0
    """A relay's last look at a process counts for this time. Unknown is not "no progress"."""
    clock_matters_s: float = 0.05
    """A host's clock that is off by less is not corrected: no rule compares more exactly."""
    clock_shown_s: float = 1.0
    """A clock that is off by more is shown: that host's log files do not fit the others'."""
    init_missing_limit_s: float = 8.0
    """Waiting in init_process_group for a rank of which no process was ever seen. The shells of a
    loop, or a parent that spawns, start all ranks within this time."""
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
    """No step, batch or collective on any rank for this time, or for several usual steps
    (`limits.standstill.no_progress_step_factor`), is a warning. Epochs end, files are saved and
    workers start within it."""
    no_progress_patient_s: float = 300.0
    """... and critical from here on if something explains a long pause: some ranks compute, a
    checkpoint is saved, code is compiled, a server is asked. A minute is usual then."""
    poll_wakes_per_s: float = 0.4
    """A thread that wakes this often polls: a loop with `sleep(2)` does, one long sleep not."""
    appear_snapshots: int = 2
    """A finding appears after this many agreeing snapshots, half a second apart."""
    clear_snapshots: int = 3
    """... and disappears after this many snapshots without it."""
    input_bound_ratio: float = 0.4
    """Share of the step spent waiting for data. Above it the loader is the first thing to fix."""
    input_bound_others: float = 0.5
    """If most ranks are input-bound, those above this share of the threshold are named too."""
    straggler_strong_ratio: float = 0.3
    """From here on one read of the arrivals and a few steps are enough; below it, two reads."""
    oversubscribed_ratio: float = 0.4
    """Share of the time in which half of a host's ranks are ready to run and have no CPU. Four
    ranks that compute half of the time on two cores reach 0.3, four that are pinned to one core
    0.7."""
    foreign_cores: float = 0.5
    """Cores that other processes use of CPUs that are all in use. From here on that is reported
    beside what the job itself does."""
    oversubscribed_window_s: float = 20.0
    """Ranks lack CPUs over this time, and have been running since before. Imports and worker starts
    are crowded, and pass."""
    throttled_told_ratio: float = 0.05
    """Share of the time in which a CPU quota holds a rank. From here on it is reported beside
    another finding, and so is the share that the hypervisor gives to others. Below, it changes
    nothing."""
    memory_low_bytes: float = 4 * 2.0**30
    """Memory that is left, beside `limits.resources.memory_low_ratio`, and no more than this: on a
    large host 4 % is enough."""
    disk_full_ratio: float = 0.02
    """Share of a disk that is free, or of its inodes. What root has reserved is not free."""
    ras_fresh_s: float = 60.0
    """An older answer of NCCL's RAS service is out of date. While something is stuck it is asked
    every ten seconds."""
    gpu_silent_s: float = 10.0
    """The driver is asked each second. After ten missed answers the last numbers are not shown."""
    gpu_foreign_ratio: float = 0.05
    """Share of a GPU's memory that another's process holds. The context of a display server or of
    an idle notebook is below."""
    gpu_refused_shown: int = 1
    """The row of a GPU is marked from this many such allocations on. It is not a finding yet."""
    gpu_throttled_s: float = 5.0
    """Clocks are held down for this time. Peaks of load touch the power cap for a moment."""
    gpu_slow_ratio: float = 0.85
    """Share of the clock of the job's GPUs of that kind. Equal ones differ by a few percent."""
    gpu_busy_ratio: float = 0.5
    """Share of the time in which some kernel ran. The clocks of an idle GPU say nothing."""
    gpu_mean_s: float = 10.0
    """Power and use of a GPU are means over this time. Steps of a second or two, with their
    gradient exchange, are even by then."""
    gpu_wait_busy_ratio: float = 0.95
    """An NCCL kernel that waits is a kernel that runs, so such a GPU is busy all the time."""
    gpu_wait_power_ratio: float = 0.6
    """Share of the power that a GPU draws while it computes. A waiting kernel draws a quarter to a
    half of it; equal GPUs under one load differ by a tenth."""
    gpu_wait_cap_ratio: float = 0.5
    """The same of its power cap. Kernels that read much memory and compute little draw more than
    half of it, those that wait do not."""
    stack_wait_s: float = 1.0
    """Read from outside, a rank waits after so long in one call. Two looks are a second apart."""
    stack_apart_looks: int = 24
    """... and one that runs takes part in no collective after so many looks elsewhere in a row."""
    gil_wakes_per_s: float = 50.0
    """A thread that waits for the GIL wakes every 5 ms. One that sleeps in C with it does not."""
    busy_ratio: float = 0.5
    """Cores used by a thread that computes: one that is ready and uses less lacks a CPU. Also by a
    process without children that computes, though it sleeps now."""
    same_line_s: float = 3.0
    """Six reports in which a busy main thread was at the same line, with the same call below it."""
    together_s: float = 2.0
    """Signals to all ranks within this time are one act: Ctrl-C, scancel, a time limit."""
    interrupted_together_s: float = 5.0
    """The same for Ctrl-C. Python raises KeyboardInterrupt only when the rank leaves its C code,
    which takes seconds on a busy host."""
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

    changed: Mapping[type[Limits], Any] = field(default_factory=dict)
    """The blocks in which somebody has changed a limit."""

    def of(self, block: type[Block]) -> Block:
        """The limits of that block."""
        found: Block = self.changed.get(block) or _DEFAULTS[block]
        return found

    def wait_s(self, block: type[Waits]) -> float:
        """From when on a wait is too long for that rule, seconds."""
        own_s = self.of(block).wait_s
        return self.still_limit_s if own_s is None else own_s

    @property
    def longest_wait_s(self) -> float:
        """When every rule has judged a wait for a rank without progress, seconds."""
        own = [block for block in self.changed if issubclass(block, Waits)]
        return max([self.still_limit_s, *map(self.wait_s, own)])

    def with_limits(self, values: Mapping[str, float]) -> Policy:
        """The policy with these: `{"still_limit_s": 10.0, "straggler.ratio": 0.2}`."""
        own: dict[str, Any] = {}
        changed = dict(self.changed)
        for name, value in values.items():
            of, _, one = name.rpartition(".")
            if of:
                block = BLOCKS[of]
                changed[block] = replace(changed.get(block) or block(), **{one: value})
            else:
                own[name] = value
        return replace(self, changed=changed, **own)

    def values(self) -> dict[str, float]:
        """Every limit by its name in the config file."""
        return {name: value for name, value, _ in self._all_limits(map(self.of, BLOCKS.values()))}

    def changes(self) -> tuple[tuple[str, float, float], ...]:
        """(name, value, our value) of each limit that somebody has changed."""
        # Each look with a finding asks, and usually nobody has changed any.
        if self == POLICY:
            return ()
        return tuple(
            value for value in self._all_limits(self.changed.values()) if value[1] != value[2]
        )

    def _all_limits(self, blocks: Iterable[Limits]) -> Iterator[tuple[str, float, float]]:
        """(name, value, our value): the shared limits, then those of the blocks."""
        owners: list[tuple[str, Policy | Limits]] = [
            ("", self),
            *((f"{limits.block}.", limits) for limits in blocks),
        ]
        for prefix, owner in owners:
            for one in fields(owner):
                ours: Any = self.still_limit_s if one.default is None else one.default
                value = getattr(owner, one.name)
                if one.name != "changed":
                    yield prefix + one.name, ours if value is None else value, ours


POLICY = Policy()
