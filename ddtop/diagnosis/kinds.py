"""The kinds of finding, and the order of the rules. The value of a kind never changes, because
scripts and old recordings compare it.
"""

from __future__ import annotations

from enum import Enum, Flag, auto


class Is(Flag):
    """What is true of all findings of one kind."""

    PLAIN = 0
    #: It may also be true of a job that makes progress. As a warning it explains no standstill.
    BESIDE = auto()
    #: It says that a job is slow or short of something: never that it hangs, even if critical.
    MOVES = auto()
    #: It says that a rank is slow, busy or elsewhere. An expected region explains it.
    TIME = auto()
    #: It is seen while the job trains, and stays while the job validates or saves in between.
    PHASE = auto()
    #: A rank ended first.
    END = auto()
    #: A slow start or a busy moment is over soon. A warning about it is shown once it has stood.
    BRIEF = auto()


class Kind(str, Enum):
    """What a finding is about, in the order of the pages of `ddtop explain`.

    A member is a string: it equals its value, and JSON shows the value. `what`: its traits.
    """

    what: Is

    def __new__(cls, value: str, what: Is) -> Kind:
        """`what` has no default: a kind without its traits is a TypeError at import."""
        kind = str.__new__(cls, value)
        kind._value_, kind.what = value, what
        return kind

    @classmethod
    def of_plugin(cls, value: str, what: Is) -> Kind:
        """The kind of a rule of another package. It equals its value, as our kinds do, but it is
        not one of the members."""
        kind = str.__new__(cls, value)
        kind._name_, kind._value_, kind.what = value, value, what
        return kind

    def is_any(self, what: Is) -> bool:
        """Whether it has one of these traits."""
        return bool(self.what & what)

    NOT_IN_COLLECTIVE = "not-in-collective", Is.TIME
    LEFT_EARLY = "left-early", Is.END
    INTERPRETER_FROZEN = "interpreter-frozen", Is.TIME
    WAITS_FOR_JOB = "waits-for-job", Is.TIME
    COLLECTIVE_MISMATCH = "collective-mismatch", Is.PLAIN
    CALLS_DIFFER = "calls-differ", Is.BESIDE
    COLLECTIVE_STUCK = "collective-stuck", Is.TIME
    NO_PROGRESS = "no-progress", Is.TIME
    COMM_ERROR = "comm-error", Is.PLAIN
    THREADS_SHARE_GROUP = "threads-share-group", Is.BESIDE
    WAIT_CYCLE = "wait-cycle", Is.PLAIN
    UNMATCHED_P2P = "unmatched-p2p", Is.PLAIN
    RANK_CRASHED = "rank-crashed", Is.END
    RANK_KILLED = "rank-killed", Is.END
    HELPER_CRASHED = "helper-crashed", Is.PLAIN
    CANCELLED = "cancelled", Is.BESIDE
    RANK_STOPPED = "rank-stopped", Is.PLAIN
    IO_STALL = "io-stall", Is.TIME
    LOADER_STUCK = "loader-stuck", Is.TIME
    INPUT_BOUND = "input-bound", Is.BESIDE | Is.MOVES | Is.TIME | Is.PHASE
    HOST_LOST = "host-lost", Is.PLAIN
    STRAGGLER = "straggler", Is.BESIDE | Is.MOVES | Is.TIME
    SLOWDOWN = "slowdown", Is.BESIDE | Is.MOVES | Is.TIME
    IMBALANCE = "imbalance", Is.BESIDE | Is.MOVES | Is.TIME | Is.PHASE
    SYNC_BOUND = "sync-bound", Is.BESIDE | Is.MOVES | Is.TIME
    TRANSFER_BOUND = "transfer-bound", Is.BESIDE | Is.MOVES | Is.TIME | Is.PHASE
    CPU_OVERSUBSCRIBED = "cpu-oversubscribed", Is.BESIDE | Is.MOVES | Is.TIME | Is.BRIEF
    MEMORY_PRESSURE = "memory-pressure", Is.BESIDE | Is.MOVES
    DISK_FULL = "disk-full", Is.BESIDE | Is.MOVES
    SAMPLER_NOT_DISTRIBUTED = "sampler-not-distributed", Is.BESIDE
    EPOCH_NOT_SET = "epoch-not-set", Is.BESIDE | Is.PHASE
    LOSS_NOT_FINITE = "loss-not-finite", Is.BESIDE | Is.MOVES | Is.PHASE
    DIVERGED = "diverged", Is.BESIDE | Is.MOVES | Is.PHASE
    EXCEPTION_SWALLOWED = "exception-swallowed", Is.BESIDE
    WRONG_BACKEND = "wrong-backend", Is.BESIDE
    GPU_UNAVAILABLE = "gpu-unavailable", Is.PLAIN
    GPU_BUSY = "gpu-busy", Is.BESIDE | Is.MOVES
    GPU_SHARED = "gpu-shared", Is.BESIDE | Is.MOVES
    GPU_MEMORY_LOW = "gpu-memory-low", Is.BESIDE | Is.MOVES
    GPU_THROTTLED = "gpu-throttled", Is.BESIDE | Is.MOVES
    GPU_ERROR = "gpu-error", Is.PLAIN
    RANK_MISSING = "rank-missing", Is.BRIEF
    LATE_TO_INIT = "late-to-init", Is.TIME | Is.BRIEF
    MASTER_UNREACHABLE = "master-unreachable", Is.PLAIN
    PEER_UNREACHABLE = "peer-unreachable", Is.PLAIN
    DUPLICATE_RANK = "duplicate-rank", Is.PLAIN
    RENDEZVOUS_MISMATCH = "rendezvous-mismatch", Is.PLAIN
    STALE_STORE = "stale-store", Is.PLAIN
    NOT_DISTRIBUTED = "not-distributed", Is.BESIDE
    VERSION_SKEW = "version-skew", Is.BESIDE

    def __str__(self) -> str:
        return str(self.value)


ORDER = (
    # -- the start
    "launcher_waits",
    "rendezvous",
    "starting",
    "unreachable",
    # -- the end
    "mpi_truncated",
    "aborted",
    "departures",
    # -- a rank that keeps others waiting
    "stopped",
    "group_calls",
    "mismatch",
    "deadlock",
    "hang",
    "blamed",
    "gil_held",
    "stuck",
    "host_lost",
    # -- a job that moves slowly
    "straggler",
    "straggler_by_stack",
    "input_bound",
    "oversubscribed",
    "communication",
    "imbalance",
    "slowdown",
    "loss_not_finite",
    "diverged",
    "sampling",
    "not_distributed",
    "calls_differ",
    # -- what explains findings above
    "threads",
    "exception_swallowed",
    "version_skew",
    "backend",
    "gpu_unavailable",
    "gpu_duplicate",
    "gpu_error",
    "gpu_use",
    "resources",
    # -- what is left
    "comm_error",
    "no_steps",
    "no_progress",
    "waits_for_job",
)
"""The rules, by their names. A cause is above its possible consequences."""
