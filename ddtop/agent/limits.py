"""The thresholds of the agent: when something in a rank is stuck, late, delayed or an iteration.

The other rooms get theirs from `ddtop.policy`. That module costs 8 ms of import in each rank, this
one 0.4 ms. Where both have the same threshold, a test compares them. Times are ns, as in the agent.
"""

from __future__ import annotations


class AgentLimits:
    """One set of thresholds. `Limits(stuck_ns=...)` changes only that threshold.

    A rank has one (`Rank.limits`), and everything that judges in the rank takes it from there.
    """

    stuck_ns = 1_000_000_000
    """A call that is open, or a group that does not move, for this time is reported as stuck."""
    still_ns = 2_000_000_000
    """If nothing is open and nothing has moved for this time, the entries are read once, to learn
    which collectives this rank has completed."""
    still_stall_ns = 4_000_000_000
    """After this time without progress, a read of the entries may hold the GIL for tens of ms."""
    nccl_stuck_ns = 4_000_000_000
    """Entries of NCCL are read only after this time, because a healthy step may have a collective
    open for seconds."""
    in_line_ns = 3_000_000_000
    """A main thread that is inside one call for this time waits, for example for its GPU. A loop
    would have come to another call."""
    unseen_read_after_ns = 5_000_000_000
    """The status is not read while a group may get its first entry. After this time without
    progress it is read anyway."""
    wait_kept_ns = 500_000_000
    """Waits that ended sooner are not remembered: no rule asks about them."""
    wait_samples, wait_samples_least = 80, 12
    """Samples from which the share of time in collectives is computed: the last 20 s, and at least
    3 s."""
    batch_late_ns = 1_000_000_000
    """After a wait of this length for a batch, the agent looks at the worker that must deliver
    it."""
    feed_steps = 8
    """A loader with this many optimizer steps feeds the training, and is the one reported."""
    optimizer_forget_steps = 8
    """After this many steps of other optimizers the counted one is no longer in use: the next one
    that steps is counted."""
    pattern_rounds, pattern_looks, pattern_length = 3, 4, 64
    """A pattern among the last `pattern_length` MPI collectives counts as an iteration once it has
    repeated this often, in this many ticks."""
    pattern_recent_ns, pattern_recent_least = 10_000_000_000, 12
    """Without such a pattern, only the collectives of this time are compared, if there are this
    many. Before that, the program may have been in another loop."""
    step_window_ns = 2_000_000_000
    """The length of a step is the mean over this time, but of two steps at least."""
    steady_factor, steady_wait_ratio = 1.25, 0.25
    steady_ns, steady_odd_ns = 60_000_000_000, 10_000_000_000
    """Steps are steady while they take this much longer or shorter at most. In a rank whose steps
    have been steady for this time, and that waits for a smaller part of it, fewer samples say the
    same. The rules that compare waits need more of them. After a pause, or other steps, of less
    than `steady_odd_ns`, steps are as steady as before: a save, or a moment in which the machine is
    busy, makes no other training of it."""
    speed_window_ns = 30_000_000_000
    """Speeds are the mean over this time."""
    speed_silent_ns = 5_000_000_000
    """A count that has not grown for this time, and for three usual intervals, slows the speed."""
    eta_window_ns = 600_000_000_000
    """The remaining time follows the speed of this time, with its validations and checkpoints."""
    pace_piece_ns, pace_piece_steps = 30_000_000_000, 5
    """A piece of training has at least this length and this many steps; a mean over less is
    noise."""
    pace_pieces, pace_warm_up_pieces = 4, 1
    """A pace is made of four pieces, two minutes. The first piece of a job is left out."""
    pace_before_ns = 600_000_000_000
    """The current pace is compared with the pace this long ago, and with the pace at the start."""
    fall_piece_ns, fall_piece_steps, fall_usual_pieces = 2_000_000_000, 5, 30
    """Large losses of speed are seen in pieces of this length and with so many steps. The last
    usual ones are what the slow ones are compared with."""
    fall_long_ns, fall_long_steps = 10_000_000_000, 3
    """... or of this length, with so many steps."""
    fall_slow_factor, fall_factor = 1.5, 4.0
    """A piece is slow from the first factor on. A loss is large from the second on."""
    fall_ns = 20_000_000_000
    """A loss is told once all pieces of this time are slow."""
    held_ns = 8_000_000
    """A tick that is this late waited for the GIL or for a CPU: Python's other threads give the
    GIL up within 5 ms when asked."""

    def __init__(self, **changes: int) -> None:
        for name, value in changes.items():
            if not hasattr(AgentLimits, name):
                raise TypeError(f"no such limit: {name}")
            setattr(self, name, value)


LIMITS = AgentLimits()
