"""A world of made-up process groups, and the probe over it."""

import sys
from types import SimpleNamespace

from ddtop.agent.limits import LIMITS
from ddtop.agent.notes import Notes, PeerNotes
from ddtop.agent.probes.collectives import Collectives

SECOND = 1_000_000_000


class FakeGroup:
    """A process group with a sequence number."""

    def __init__(self):
        self.seq = 0
        self.group_desc = "undefined"

    def _get_sequence_number_for_group(self):
        return self.seq

    def _get_backend(self, _device):
        return SimpleNamespace()


class FakeRecorder:
    """Torch's recorder. It reports the statuses in `says` and the entries in `list`."""

    def __init__(self):
        self.says, self.list, self.why_off = {}, [], None

    def status(self, _without=()):
        return self.says

    def entries(self, _size_guess, _stalls=False, _nccl_gpu=None, _hooked=False):
        return self.list


def fake_rank(limits=LIMITS, **more):
    """As much of a rank as the probe reads."""
    nothing = SimpleNamespace(number_of=lambda *_: None)
    known = {
        "page": SimpleNamespace(words=[0] * 32), "frames": SimpleNamespace(walk=nothing),
        "limits": limits, "notes": Notes(), "lead_id": 0,
        "recorder_paused": False, "collectives_paused": False, "exiting": False,
        "destroyed": False, "times_destroyed": 0, "final_seqs": {}, "exception": None,
    }  # fmt: skip
    return SimpleNamespace(**(known | more))


class Bench:
    """One probe over a world of fake groups. Time passes in steps of a quarter of a second."""

    def __init__(self, monkeypatch):
        self.group, self.now = FakeGroup(), 100 * SECOND
        self.world = SimpleNamespace(
            default_pg=self.group,
            pg_names={self.group: "0"},
            pg_group_ranks={self.group: {0: 0, 1: 1}},
            pg_map={},
        )
        monkeypatch.setitem(
            sys.modules, "torch.distributed.distributed_c10d", SimpleNamespace(_world=self.world)
        )
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(device=str))
        rank = fake_rank()
        self.peers = rank.notes[PeerNotes]
        self.probe, self.recorder = Collectives(rank), FakeRecorder()
        self.probe._recorder = self.recorder

    def passes(self, seconds, steps=False, waiting=False, completed=None, in_line=False):
        """Time passes.

        `completed`: how many collectives the completed number is behind the enqueued one; None: the
        recorder is off. `in_line`: the main thread is inside one call all the time.
        """
        since = self.now if in_line else None
        for _ in range(round(seconds * 4)):
            self.now += SECOND // 4
            self.group.seq += steps
            if completed is not None:
                self.recorder.says = {("fr", "0"): (self.group.seq, self.group.seq - completed)}
            self.probe.look(self.now, 0, waiting, since)

    def looks(self):
        """One tick of the agent, a quarter of a second later, as a rank's probe gets it."""
        self.now += SECOND // 4
        self.probe.sample(
            SimpleNamespace(
                now=self.now, gpu=0, seen=None, has_peer=False, line_since=None, unix_minus_mono=1
            )
        )

    @property
    def pending(self):
        (found, *_) = self.probe.progress(0)
        return found.pending_since_unix_ns
