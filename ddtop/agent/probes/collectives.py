"""The progress of this rank in each of its process groups, and its open collectives.

Source: torch's sequence numbers, read at every tick (1 us); the flight recorder's status, at most
four times a second; its entries, once a stuck collective. Caveat: the read of the status walks C++
maps without their lock. The status is not read while a group is being made, or may be about to get
its first entry; after 5 s without progress it is read anyway, after 10 s again, and so on. Check:
`torch.distributed._dump_fr_trace` in the program.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec

from ddtop.agent.guard import guard
from ddtop.agent.notes import PeerNotes, meshes
from ddtop.agent.probe import Fields, LastEntry, Tick, WaitsProbe
from ddtop.agent.probes.calls import CallNotes
from ddtop.agent.probes.cuda import Captures
from ddtop.agent.probes.groups import (
    DONE,
    GroupWatch,
    by_order,
    describe,
    ended_keys,
    error_of,
    numbers_of,
)
from ddtop.agent.probes.parallel import meanings_of
from ddtop.agent.probes.recorder import (
    HOOKED,
    Entries,
    Recorder,
    Status,
    UnreadableError,
    collective,
)
from ddtop.agent.rank import Rank
from ddtop.agent.stacks.frames import BACKWARD, COLLECTIVE, FORWARD, LOADER, OPTIMIZER
from ddtop.procfs import runs
from ddtop.wire.names import ROOTED as ROOTED_CALLS
from ddtop.wire.page import HEARTBEAT_AT
from ddtop.wire.records import (
    BESIDE,
    REDUCING,
    ROOTED,
    SYMMETRIC,
    Arrivals,
    Collective,
    Group,
    GroupProgress,
    RankState,
    arrivals_of,
)

LOOK_EVERY_NS, MEANINGS_EVERY_NS = 200_000_000, 2_000_000_000
BROADCAST = "broadcast"
"""The operation, and the function of torch that calls it."""
ENTRIES, STATUS, MEANINGS = "entries", "recorder status", "parallel groups"
"""Names in `probes_off`."""
ENTRIES_EVERY_NS = 5_000_000_000
_ELSEWHERE = (LOADER, FORWARD, OPTIMIZER)
"""Activities in which a rank waits for no collective. A wait inside a forward (FSDP, DDP's buffers)
is COLLECTIVE."""


class Collectives(WaitsProbe):
    """Torch's process groups. It holds no reference to a process group between two calls.

    `gpu`: the rank's own CUDA device, None while it is not known. Without it NCCL's entries are not
    read.
    """

    name = "collectives"

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank.limits)
        self._rank = rank
        self._peers: PeerNotes = rank.notes[PeerNotes]
        self.turns = rank.notes[CallNotes].turns
        self._recorder: Recorder | None = None
        self._watches: dict[str, GroupWatch] = {}
        self._names: dict[tuple[str, str], str] = {}
        self._ended: set[tuple[str, str]] = set()
        self._read_keys: deque[tuple[object, ...]] = deque(maxlen=64)
        self._entries_at = self._status_at = self._errors_at = 0
        self._meanings: dict[str, tuple[str, ...]] = {}
        self._meanings_at, self._looked_at, self.waits = 0, 0, False
        self.why_blind: str | None = None
        self.gpu: int | None = None
        self._captures, self._replays = Captures(), 0
        self._left = False
        self._without: tuple[tuple[Group, ...], frozenset[str]] | None = None
        self._status_unreadable = False
        self._seen_keys: set[tuple[str, str]] = set()
        self._former_keys: set[tuple[str, str]] = set()
        self._some_destroyed, self._times_destroyed = False, 0

    @property
    def stuck(self) -> tuple[str, int] | None:
        """(group, first open seq) of the collective that has been open longest, if for a second."""
        gaps = self._gaps()
        return gaps[0] if gaps else None

    def _gaps(self) -> list[tuple[str, int]]:
        """The same for each group that has one, the oldest first."""
        pending = [
            (watch.pending_since, name, watch)
            for name, watch in self._watches.items()
            if watch.pending_since
        ]
        if not pending:
            return []
        pending.sort(key=lambda item: item[0] or 0)
        return [
            (name, (watch.completed or 0) + 1 - (watch.offset or 0))
            for since, name, watch in pending
            if self._now - (since or 0) > self._limits.stuck_ns
        ]

    def sample(self, tick: Tick) -> None:
        """Read the process groups, unless the program is destroying one."""
        rank, self.waits = self._rank, False
        self.gpu = tick.gpu
        if rank.collectives_paused or tick.now - self._looked_at < LOOK_EVERY_NS:
            tick.stuck = self.stuck is not None
            return
        self._looked_at = tick.now
        if rank.destroyed or rank.times_destroyed != self._times_destroyed:
            self._times_destroyed = rank.times_destroyed
            self.leave_groups(rank.final_seqs)
        if not rank.destroyed:
            seen, waiting, in_line = tick.seen, False, None
            if not tick.has_peer:
                waiting = seen is not None and seen.activity in (COLLECTIVE, BACKWARD)
                in_line = tick.line_since
            # Compiled code calls collectives without a Python frame of torch.
            elsewhere = (
                seen is not None
                and seen.activity in _ELSEWHERE
                and "torchinductor_" not in seen.file
            )
            self.look(tick.now, tick.unix_minus_mono, waiting, in_line, elsewhere)
        tick.waits, tick.stuck = self.waits, self.stuck is not None

    def fields(self, tick: Tick) -> Fields:
        """The progress of each group, and what is open."""
        rank = self._rank
        in_trouble = self.stuck or rank.exception is not None
        return partial(
            RankState,
            calls=rank.page.last_calls() if in_trouble else (),
            groups=self.progress(tick.unix_minus_mono),
            open_collectives=self.open_collectives(),
            retired_collectives=self.retired_collectives(),
            recorder=self.why_blind,
        )

    def close(self, tick: Tick) -> None:
        """Report what has completed since the last sample."""
        rank = self._rank
        if rank.destroyed:
            self.leave_groups(rank.final_seqs)
        elif not rank.collectives_paused:
            self.look(tick.now, tick.unix_minus_mono, False)

    def stuck_key(self) -> tuple[object, ...] | None:
        """The group and the first open sequence number."""
        return self.stuck

    def last_entries(self, unix_minus_mono: int = 0) -> list[LastEntry]:
        """The last collectives; reads the entries once."""
        if self._recorder is None or self._rank.recorder_paused or not self._recorder_answers():
            return []
        times = self._recorder.times(self._size_guess())
        self._note_entries()
        tracked = [
            (self._track(by, group), seq, at, op, size) for by, group, seq, at, op, size in times
        ]
        return [time for time in tracked if time[0] in self._watches]

    def look(
        self,
        now: int,
        unix_minus_mono: int,
        waiting_frame: bool,
        in_line_since: int | None = None,
        elsewhere: bool = False,
    ) -> None:
        """Read the groups once.

        `elsewhere`: the rank's thread does something other than communication, so an open gloo
        collective blocks nobody now. The other arguments are for use without the recorder.
        `waiting_frame`: the main thread is inside torch's collective code. `in_line_since`: since
        when it has been inside one and the same call, monotonic ns.
        """
        self._now = now
        c10d = sys.modules.get("torch.distributed.distributed_c10d")
        # During its import the module exists but is empty.
        if getattr(getattr(c10d, "_world", None), "default_pg", None) is None:
            return
        if self._left:
            # New groups count from 0 again, even if they have the names of old ones.
            self._forget_groups()
        self._look_at_groups(c10d, now)
        if self._captures.replays != self._replays:
            self._replays, self.moved_at = self._captures.replays, now
        if self._may_read_status(now):
            self._look_at_status(now)
        if self._status_at != now or not self._recorder_answers():
            self._guess_pending(now, waiting_frame, in_line_since)
        else:
            self._look_at_calls(now, in_line_since if waiting_frame else None)
        self._look_at_building(now, waiting_frame)
        pending = [name for name, watch in self._watches.items() if watch.pending_since is not None]
        on_nccl = self._on_nccl() if pending else set()
        on_host = [name for name in pending if name not in on_nccl]
        self.waits = bool(pending) if not elsewhere else len(pending) > len(on_host)
        # On NCCL the CPU side runs ahead of the GPU: a collective is nearly always open, which
        # means nothing.
        self.count_sample(self.waits, bool(on_host) and not elsewhere)
        # In a rank that moves there is no more to do.
        moved = self.moved_at is not None and now - self.moved_at <= self._limits.still_ns
        if pending or not moved or any(watch.doubted for watch in self._watches.values()):
            self._maybe_read_entries(now, unix_minus_mono)
            self._look_at_errors(c10d, now)

    def _look_at_groups(self, c10d: Any, now: int) -> None:
        world, found = c10d._world, []
        for group, own in world.pg_names.copy().items():
            for name, seq in numbers_of(str(own), group).items():
                self._look_at_number(name, seq, now)
                found.append((name, group))
        # If other ranks use gloo here, the ranks that wait must know that this rank has not.
        used = [
            (name, group)
            for name, group in found
            if self._watches[name].enqueued or not name.endswith(BESIDE)
        ]
        changed = [name for name, _ in used] != [group.name for group in self.groups]
        if (changed or now - self._meanings_at > MEANINGS_EVERY_NS) and used:
            # A mesh or a global may get its group some time after the group was made.
            self._meanings_at, before = now, self._meanings
            guard.run(MEANINGS, self._find_meanings, world)
            changed = changed or self._meanings != before
        if changed:
            self.groups = tuple(
                describe(world, name, group, self._meanings.get(name.removesuffix(BESIDE), ()))
                for name, group in used
            )
            if any("nccl" in group.backend for group in self.groups):
                self._captures.watch()
        for gone in set(self._watches) - {name for name, _ in found}:
            self._some_destroyed = True
            del self._watches[gone]
            self._peers.forget(gone)

    def _find_meanings(self, world: Any) -> None:
        self._meanings = meanings_of(world, meshes())

    def _look_at_number(self, name: str, seq: int | None, now: int) -> None:
        watch = self._watches.get(name)
        if watch is None:
            watch = self._watches[name] = GroupWatch(moved_at=now)
        # The sends and receives of a monitored_barrier advance the number: use the one from before
        # it.
        seq = self._peers.bases.get(name, seq)
        if seq is not None and seq != watch.enqueued:
            watch.enqueued, watch.moved_at, self.moved_at = seq, now, now
        watch.offset = (
            max(watch.offset or 0, self._peers.counts.get(name, 0))
            if seq is not None
            else watch.offset
        )

    def _look_at_errors(self, c10d: Any, now: int) -> None:
        if self.stuck is None or now - self._errors_at < ENTRIES_EVERY_NS:
            return
        self._errors_at = now
        for group, name in c10d._world.pg_names.copy().items():
            watch = self._watches.get(str(name))
            if watch is not None:
                watch.error = error_of(c10d._world, group)

    def _recorder_answers(self) -> bool:
        return self._recorder is not None and any(
            watch.completed is not None for watch in self._watches.values()
        )

    def _may_read_status(self, now: int) -> bool:
        if self._rank.recorder_paused or self._status_unreadable:
            return False
        if not any(watch.enqueued for watch in self._watches.values()):
            return False
        if all(watch.used for watch in self._watches.values()):
            return True
        without = self._not_read()
        unseen = [
            (name, watch)
            for name, watch in self._watches.items()
            if not watch.used
            and not ("fr" in without and name.endswith(BESIDE) and not watch.enqueued)
        ]
        nccl = self._on_nccl() if unseen else set()
        for name, watch in unseen:
            # The group was used since the last tick, so at the next tick its status will be in the
            # map. On NCCL one call with a peer is enough.
            watch.used = watch.enqueued > 0 or (name in nccl and self._peers.calls.get(name, 0) > 0)
        if not unseen:
            return True
        still = now - max(watch.moved_at for watch in self._watches.values())
        long_still = still > self._limits.unseen_read_after_ns
        return long_still and now - self._status_at > still // 2

    def _look_at_status(self, now: int) -> None:
        if self._recorder is None:
            self._recorder = Recorder()
            self._note_entries()
        try:
            status = self._recorder.status(self._not_read())
        except UnreadableError as error:
            # Sequence numbers and frames are still read.
            guard.note(STATUS, str(error))
            status, self._status_unreadable = {}, True
        self._status_at = now
        self._seen_keys.update(status)
        status = {key: one for key, one in status.items() if key not in self._former_keys}
        if not status and not self._former_keys:
            self.why_blind = "flight recorder off"
            return
        self.why_blind = None
        if any(key not in self._names for key in status) and not self._learn_names(status, now):
            return
        for key, (enqueued, completed) in status.items():
            watch = self._watches.get(self._names.get(key, "")) if key not in self._ended else None
            # With TORCH_NCCL_BLOCKING_WAIT the enqueued number of the status stays at -1. Then only
            # the sequence number and the frame are known.
            if watch is None or enqueued < 0:
                continue
            # NCCL counts calls with one peer separately; its status has the last call of either
            # kind.
            mixed = key[0] == "nccl" and self._peers.calls.get(self._names[key], 0) > 0
            take = watch.take_mixed_status if mixed else watch.take_status
            waited = take(enqueued, completed, now)
            if waited is not None:
                self.note_wait(waited)
            if watch.moved_at == now:
                self.moved_at = now

    def _not_read(self) -> frozenset[str]:
        """The recorders to leave out. Gloo's, as long as only NCCL is used, because it may be about
        to get its first entry. That of torch 2.15's NCCL, if there is no group on NCCL.
        """
        if self._without is not None and self._without[0] is self.groups:
            return self._without[1]
        gloo = [self._watches[group.name] for group in self.groups if "nccl" not in group.backend]
        unused = [] if any(watch.used for watch in gloo) else ["fr"]
        found = frozenset(unused if self._on_nccl() else [*unused, HOOKED])
        if all(watch.used for watch in self._watches.values()):
            self._without = self.groups, found
        return found

    def _track(self, recorder: str, group: str) -> str:
        """The name under which the entries of a group in a recorder are reported."""
        beside = group + BESIDE
        return beside if recorder == "fr" and beside in self._watches else group

    def _guess_pending(self, now: int, waiting_frame: bool, in_line_since: int | None) -> None:
        # Without a status: nothing was enqueued for a second and the main thread is in collective
        # code. A group that has moved since makes the last status too old to use.
        last = max((watch.moved_at for watch in self._watches.values()), default=now)
        # On NCCL the main thread waits in loss.item() instead, or elsewhere for its GPU.
        nccl: set[str] = set()
        if in_line_since is not None and now - in_line_since > self._limits.in_line_ns:
            nccl = self._on_nccl()
            # It spins for its GPU: asleep it waits for something else. Last, as it reads a file.
            nccl = nccl if nccl and runs("self") else set()
        for name, watch in self._watches.items():
            if watch.moved_at > self._status_at:
                watch.completed, watch.open = None, []
            done = watch.completed is not None and watch.completed >= watch.enqueued
            stuck = (waiting_frame or name in nccl) and not done and watch.moved_at == last
            # Nothing was enqueued since the last status said that something is open.
            if watch.pending_since and watch.status and watch.moved_at <= self._status_at:
                continue
            if stuck and watch.enqueued and now - watch.moved_at > self._limits.stuck_ns:
                watch.pending_since = watch.pending_since or watch.moved_at
                continue
            if watch.pending_since is not None and watch.moved_at > watch.pending_since:
                self.note_wait(watch.moved_at - watch.pending_since)
            watch.pending_since = None

    def _look_at_calls(self, now: int, in_call_since: int | None) -> None:
        """NCCL: find a thread that is blocked inside a call that is not in the status yet."""
        for name, number in self._used_on_nccl().items():
            # A status that mixes both kinds of calls cannot be compared with the number.
            if number is not None:
                self._watches[name].follow_call(now, in_call_since, self._limits.stuck_ns)

    def _look_at_building(self, now: int, waiting_frame: bool) -> None:
        # NCCL creates a group's communicator inside its first collective: the number has changed,
        # but the recorder has no entry yet.
        for group in self.groups:
            watch = self._watches.get(group.name)
            if watch is None or "nccl" not in group.backend:
                continue
            # If the recorder is off, or the status stays at -1, only the very first call is
            # certain.
            first = watch.completed is None and watch.enqueued == 1
            builds = first and waiting_frame and now - watch.moved_at > self._limits.stuck_ns
            if builds or watch.building:
                watch.pending_since = (watch.pending_since or watch.moved_at) if builds else None
            watch.building = builds

    def _learn_names(self, status: Status, now: int) -> bool:
        if len(status) == 1 and len(self.groups) == 1:
            self._names[next(iter(status))] = self.groups[0].name
            self._ended = ended_keys(self._names)
            return True
        if not self._some_destroyed:
            self._names |= by_order(status, self._used_on_nccl())
        if all(key in self._names for key in status):
            return True
        if now - self._entries_at < ENTRIES_EVERY_NS and self._entries_at:
            return bool(self._names)
        self._read_entries(now, 0, hooked=True)
        return all(key in self._names for key in status)

    def _maybe_read_entries(self, now: int, unix_minus_mono: int) -> None:
        if self._recorder is None or self._rank.recorder_paused or self.why_blind is not None:
            return
        key: tuple[object, ...]
        gaps = self._gaps()
        if not gaps and not self._recorder_answers():
            return
        doubted = [
            watch.status
            for watch in self._watches.values()
            if watch.doubted is not None and watch.doubted == watch.status
        ]
        stalls = bool(gaps)
        if gaps:
            # Read once for each open collective: one that is really open must not hide that another
            # is not.
            key = next(
                (new for gap in gaps if (new := ("stuck", *gap)) not in self._read_keys),
                ("stuck", *gaps[0]),
            )
            # Another thread may enqueue more while this one is stuck.
            if key in self._read_keys and now - self._entries_at > ENTRIES_EVERY_NS:
                key = (*key, self._watches[gaps[0][0]].enqueued)
        elif doubted:
            key = ("doubted", *doubted)
        elif self.moved_at is not None and now - self.moved_at > self._limits.still_ns:
            key = (
                "still",
                tuple((name, watch.enqueued, watch.last) for name, watch in self._watches.items()),
            )
            stalls = now - self.moved_at > self._limits.still_stall_ns
        else:
            return
        on_nccl = self._stuck_on_nccl(now)
        gpu = self.gpu if on_nccl and not self._captures.may_be_open else None
        if on_nccl:
            key = (*key, "nccl", gpu)
        if (
            key not in self._read_keys
            and now - self._entries_at > self._limits.stuck_ns
            and self._read_entries(now, unix_minus_mono, stalls, gpu, on_nccl)
        ):
            self._read_keys.append(key)

    def _stuck_on_nccl(self, now: int) -> bool:
        """Whether an NCCL group has made no progress for so long that reading entries is worth the
        risk.
        """
        on_nccl = self._on_nccl()
        return any(
            watch.pending_since is not None
            and now - max(watch.pending_since, watch.moved_at) > self._limits.nccl_stuck_ns
            for name, watch in self._watches.items()
            if name in on_nccl
        )

    def _on_nccl(self) -> set[str]:
        """The names of the groups that use NCCL."""
        return {group.name for group in self.groups if "nccl" in group.backend}

    def _used_on_nccl(self) -> dict[str, int | None]:
        """Group -> its number; None where calls with one peer count too."""
        return {
            group.name: None if self._peers.calls.get(group.name) else watch.enqueued
            for group in self.groups
            if "nccl" in group.backend and (watch := self._watches[group.name]).used
        }

    def _size_guess(self) -> int:
        return sum(watch.enqueued for watch in self._watches.values())

    def _note_entries(self) -> None:
        why = self._recorder.why_off if self._recorder is not None else None
        if why is not None:
            guard.note(ENTRIES, why)

    def _read_entries(
        self,
        now: int,
        unix_minus_mono: int,
        stalls: bool = False,
        gpu: int | None = None,
        hooked: bool = False,
    ) -> bool:
        """Read and use the entries; False if they cannot be read now."""
        assert self._recorder is not None
        if self._rank.exiting:
            # The thread that reads them could be in C++ without the GIL while the interpreter ends:
            # there Python before 3.14 ends the thread, and with it the process (SIGABRT).
            return False
        self._entries_at = now
        if gpu is not None:
            # If the driver blocks this read, the silence of the agent must not look as if C code
            # held the GIL.
            self._rank.page.words[HEARTBEAT_AT] = 0
        entries = self._recorder.entries(self._size_guess(), stalls, gpu, hooked)
        self._note_entries()
        if entries is not None:
            self._take_entries(entries, unix_minus_mono)
        return entries is not None

    def _take_entries(self, entries: Entries, unix_minus_mono: int) -> None:
        tracked = [
            (recorder, self._track(recorder, entry.process_group[0]), entry)
            for recorder, entry in entries
        ]
        tracked = [
            (recorder, name, entry) for recorder, name, entry in tracked if name in self._watches
        ]
        for recorder, name, entry in tracked:
            self._names[recorder, str(entry.pg_id)] = name
        self._ended = ended_keys(self._names)
        # A gloo group whose entries have all been overwritten has nothing open: it was last used
        # long before the others.
        known = [
            (key[0], self._names[key])
            for key in self._names.keys() - self._ended
            if entries and key[0] == "fr"
        ]
        by_group: dict[tuple[str, str], list[Collective]] = {
            key: [] for key in known if key[1] in self._watches
        }
        for recorder, name, entry in tracked:
            collectives = by_group.setdefault((recorder, name), [])
            if not entry.is_p2p and (recorder, str(entry.pg_id)) not in self._ended:
                collectives.append(self._with_root(collective(entry, name)))
        for (recorder, name), collectives in by_group.items():
            self._watches[name].take_entries(collectives, recorder != "nccl", unix_minus_mono)

    def _with_root(self, call: Collective) -> Collective:
        """An open broadcast with the rank that gives, which the recorder does not have.

        It is an argument of the call, as long as the thread is in it.
        """
        if call.op != BROADCAST or call.state in DONE:
            return call
        file = sys.modules["torch.distributed.distributed_c10d"].__file__ or ""
        read, thread = self._rank.frames.walk.number_of, call.thread_id or self._rank.lead_id
        # The number in the group. Before torch 2.6 only that in the world.
        place, root = (read(thread, file, BROADCAST, name) for name in ("group_src", "src"))
        ranks = next((group.ranks for group in self.groups if group.name == call.group), ())
        if place is not None and place < len(ranks):
            root = ranks[place]
        return msgspec.structs.replace(call, root=root)

    def progress(self, unix_minus_mono: int) -> tuple[GroupProgress, ...]:
        """All groups as records."""
        return tuple(
            GroupProgress(
                name,
                watch.enqueued,
                watch.completed,
                watch.offset,
                watch.pending_since + unix_minus_mono if watch.pending_since is not None else None,
                watch.last_op,
                watch.error if watch.pending_since is not None else None,
                watch.building and watch.pending_since is not None,
                self._peers.calls.get(name, 0),
            )
            for name, watch in self._watches.items()
        )

    def open_collectives(self) -> tuple[Collective, ...]:
        """The collectives that were open when the entries were last read and still are."""
        return tuple(
            item for watch in self._watches.values() if watch.pending_since for item in watch.open
        )

    def retired_collectives(self) -> tuple[Collective, ...]:
        """The last retired entries of each group. Sent only while nothing makes progress."""
        stuck = self.moved_at is not None and self._now - self.moved_at > self._limits.stuck_ns
        return (
            tuple(item for watch in self._watches.values() for item in watch.retired)
            if stuck
            else ()
        )

    def leave_groups(self, final: dict[str, int]) -> None:
        """All groups were destroyed at these sequence numbers: every collective has completed.

        They are still reported, so that a rank that still waits knows that this rank has joined.
        """
        if self._left:
            return
        self._left = True
        for name, seq in final.items():
            watch = self._watches.setdefault(name, GroupWatch())
            watch.enqueued = max(watch.enqueued, seq)
            watch.offset = max(watch.offset or 0, self._peers.counts.get(name, 0))
        for watch in self._watches.values():
            watch.completed, watch.pending_since, watch.open = watch.enqueued, None, []

    def _forget_groups(self) -> None:
        # Torch never removes a status and never reuses its number (`all_pg_status_`, `local_id_`).
        self._former_keys |= self._seen_keys
        self._some_destroyed = False
        for name in self._watches:
            self._peers.forget(name)
        self.forget_samples()
        self._watches.clear()
        self._names.clear()
        self._ended.clear()
        self.groups, self._left = (), False


# -- The exact times at which this rank entered its last collectives, on request of the relay
#
# Source: one read of the flight recorder's entries, and MPI's ring of calls. Measured with 2,000
# entries (torch's default, about 1 MB of JSON): 20 ms of CPU of the agent's thread without the GIL,
# 1.2 ms with it. Caveat: without the recorder torch's collectives have no times. The relay asks at
# most once a minute in the long run, and only while some ranks wait more than others. Check:
# `torch.distributed._dump_fr_trace` in the program.


_KINDS = dict.fromkeys(("broadcast", "scatter", "gather", "reduce"), ROOTED) | {
    "all_reduce": REDUCING,
    # A barrier carries no data, so a step with many of them becomes faster without them.
    "barrier": REDUCING,
}


def take(sources: Iterable[WaitsProbe], request: str, iteration: int | None) -> Arrivals:
    """The times of the last collectives in each group that the sources know.

    `request`: the relay's name of this question. `iteration`: how many the rank has finished.
    """
    entered: dict[str, dict[int, tuple[int, int]]] = {}
    moved_bytes: dict[str, int] = {}
    unix_minus_mono = time.time_ns() - time.monotonic_ns()
    for source in sources:
        for group, seq, created_unix_ns, op, call_bytes in source.last_entries(unix_minus_mono):
            kind = ROOTED if op in ROOTED_CALLS else _KINDS.get(op, SYMMETRIC)
            entered.setdefault(group, {})[seq] = (created_unix_ns, kind)
            moved_bytes[group] = moved_bytes.get(group, 0) + (call_bytes or 0)
    found = (
        arrivals_of(group, times, moved_bytes[group] / len(times) or None)
        for group, times in entered.items()
    )
    return Arrivals(
        request, tuple(arrivals for arrivals in found if arrivals is not None), iteration
    )
