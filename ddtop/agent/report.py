"""What one tick samples, and what one report contains.

The sources are in the table `ddtop.agent.sources`. This module iterates over their probes and knows
none of them by name. It only reads itself what every report needs: see `ddtop.agent.probe`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec

import ddtop
from ddtop import plugins, private, registry
from ddtop.agent import start_relay
from ddtop.agent.environment import VALUE_CHARACTERS, redacted_argv, redacted_environment
from ddtop.agent.guard import guard
from ddtop.agent.notes import GroupNotes
from ddtop.agent.own_thread import OwnThread
from ddtop.agent.probe import TICK_NS, Fields, Probe, Tick, WaitsProbe
from ddtop.agent.probes import collectives, init_args, parallel
from ddtop.agent.sources import SOURCES, ProbeRow
from ddtop.agent.stacks import dump
from ddtop.link.rank_side import RankLink
from ddtop.redaction import redact, redacted_start
from ddtop.wire import frames
from ddtop.wire import page as layout
from ddtop.wire.names import INIT_CALLS
from ddtop.wire.records import AnyRecord, Command, Groups, Hello, OpenCall, RankState

if TYPE_CHECKING:
    from ddtop.agent.rank import Rank

REPORT_EVERY_NS = 500_000_000
CALM_REPORT_EVERY_NS = 1_000_000_000
"""The pace of a calm rank. A report costs as much CPU as a tick."""
CALM_NS = 1_000_000_000
"""A rank is calm if it has progressed within this time, has no stuck collective and does not wait
for data."""
ASKED_NS = 20_000_000_000
"""For this time after a question of the relay about waits, a rank takes all samples; after it has
said that somebody looks, half of them."""
_NOTED = (layout.SOURCE_OPTIMIZER, layout.SOURCE_USER)
"""What counts these steps notes the end of each when it comes, and not at the next tick."""
RELAY_SILENT_NS = 6_000_000_000
"""The relay sends `alive` every 2 s. An agent that misses three of them tries to start another."""
SPAWN_EVERY_NS, LOG_BYTES_MAX = 6_000_000_000, 1 << 16
_MOVED_AT = attrgetter("moved_at")


class Reporter:
    """Samples, builds records, sends them. Used by the agent's thread only."""

    def __init__(self, rank: Rank, link: RankLink) -> None:
        self._rank, self._link = rank, link
        self._probes: dict[str, Probe] = {}
        self._samples: tuple[tuple[str, Callable[[Tick], object]], ...] = ()
        self._reports: tuple[tuple[str, Callable[[Tick], Fields]], ...] = ()
        self._communication: tuple[WaitsProbe, ...] = ()
        # In the order of the record, which is then made without names: those of so many fields take
        # longer to match than all else.
        self._fields = msgspec.structs.asdict(RankState(phase="starting"))
        self._late_probes, self._tick = 0, Tick()
        self._report_at = self._moved = 0
        self._pause_ns, self._asked_at, self._closer_at = TICK_NS, -ASKED_NS, -ASKED_NS
        self._sent_groups: tuple[object, ...] | None = None
        self._relay: str | None = None
        self._complained = self._said_silent = self._is_rung = False
        self._heard_at = self._spawn_at = time.monotonic_ns()
        self._sender = registry.relay_identity(rank.run)
        self._script_digest = init_args.script_digest(sys.orig_argv)
        for plugin, reason in plugins.left_out.items():
            guard.note(f"plugin {plugin}", reason)
        for source in SOURCES:
            if source.probe:
                guard.run(source.name, self._make, source)
        self._order()

    def tick(self, now: int, held: bool, greet: bool) -> None:
        """One tick at `now` (monotonic ns).

        `held`: something delayed it. `greet`: send a Hello.
        """
        tick = self._tick
        tick.begin(now, time.time_ns() - now, self._rank.page.open_calls())
        tick.held, tick.moved_at = held, self._moved
        if len(self._rank.late_probes) != self._late_probes:
            self._order()
        for name, sample in self._samples:
            guard.run(name, sample, tick)
        self._moved = self._moved_at()
        if greet:
            self._send_hello()
        if self._is_due(now):
            self._report_at = now
            if not self._rank.dump_file.still_ours():
                self._send_hello()
            self._report()
            # Sending clears the descriptor's signal for commands that have arrived meanwhile.
            self.listen(now)

    def _is_due(self, now: int) -> bool:
        """Whether it is time for a report: once a second while the rank is calm, else twice."""
        # The sum of two ticks, each with a jitter of a fifth, is never a third shorter than the
        # report interval; that of four ticks is never a fifth shorter.
        since = now - self._report_at + 100_000_000 * self._pause_ns // TICK_NS
        if since < REPORT_EVERY_NS:
            return False
        return since >= CALM_REPORT_EVERY_NS or self._tick.stuck or not self._is_calm(now)

    def pause_ns(self) -> int:
        """How long to sleep before the next tick, without the jitter. A rank sleeps twice as long
        if its steps are steady, it waits little, and nobody has asked it. It sleeps four times as
        long, which is until the next report, if also nobody looks and the relay rings for it."""
        limits, tick, words = self._rank.limits, self._tick, self._rank.page.words
        sleeps = (
            tick.steady_since
            and tick.now - tick.steady_since >= limits.steady_ns
            and tick.now - self._asked_at >= ASKED_NS
            and not tick.stuck
            and self._is_calm(tick.now)
            and all(
                (source.wait_ratio or 0.0) <= limits.steady_wait_ratio
                for source in self._communication
            )
        )
        alone = sleeps and tick.now - self._closer_at >= ASKED_NS
        # The relay answers this by a first ring.
        words[layout.LATE_AFTER_AT] = (
            tick.late_after_ns if alone and words[layout.ITERATION_SOURCE_AT] in _NOTED else 0
        )
        sleeps_on = self._is_rung and words[layout.LATE_AFTER_AT]
        self._pause_ns = TICK_NS * (4 if sleeps_on else 2 if sleeps else 1)
        return self._pause_ns

    def _is_calm(self, now: int) -> bool:
        """Whether the rank moves. More samples of one that waits for data show which worker is
        late."""
        waits_for_data = self._rank.page.words[layout.LOADER_WAIT_SINCE_AT]
        return not waits_for_data and now - self._moved <= CALM_NS

    def _moved_at(self) -> int:
        """When any source last saw progress, monotonic ns; 0 if none has."""
        return max(filter(None, map(_MOVED_AT, self._probes.values())), default=0)

    def listen(self, now: int) -> bool:
        """Receive the relay's commands; start another relay if it has been silent for long.

        Returns whether the relay has rung, because a step does not end.
        """
        rung = False
        while (data := self._link.receive()) is not None:
            self._heard_at = now
            try:
                record = frames.open_record(frames.open_envelope(data))
            except frames.WireError:
                continue
            if isinstance(record, Command) and record.name == "dump" and record.arguments:
                guard.run("stacks", self._on_dump, record)
            elif isinstance(record, Command) and record.name == "arrivals" and record.arguments:
                guard.run("arrivals", self._on_arrivals, record)
            elif isinstance(record, Command) and record.name == "ring":
                rung = self._is_rung = True
                self._closer_at = now if record.arguments else self._closer_at
            elif isinstance(record, Command):
                self._on_alive(record)
        if now - self._heard_at > RELAY_SILENT_NS and now - self._spawn_at > SPAWN_EVERY_NS:
            self._spawn_at = now
            guard.run("relay restart", self._start_relay)
        return rung

    def _start_relay(self) -> None:
        """Start another relay. If none has ever answered, say once why."""
        rank, why = self._rank, self._link.refusal
        try:
            with contextlib.suppress(FileNotFoundError):
                log = private.read(rank.socket.with_suffix(".log"), LOG_BYTES_MAX)
                why = log.decode(errors="replace").strip().rpartition("\n")[2] or why
            start_relay.start_relay(rank.job, rank.run, rank.socket)
        except OSError as error:
            why = f"{rank.socket.parent}: {error.strerror}"
        if self._relay is None and not self._said_silent:
            self._said_silent = True
            rank.say(f"ddtop: not watched, because no relay answers: {redact(why)[:300]}")

    def report_soon(self) -> None:
        """Let the next tick report."""
        self._report_at = 0

    def last_words(self) -> None:
        """The final record of a normal exit, with the progress since the last sample."""
        now = time.monotonic_ns()
        self._tick.begin(now, time.time_ns() - now, self._rank.page.open_calls())
        for probe in self._probes.values():
            guard.run(probe.name, probe.close, self._tick)
        self._moved = self._moved_at()
        # A signal that the program has just taken stays its own when the interpreter ends.
        self._rank.dump_file.still_ours()
        self._report()

    # -- probes

    def _make(self, source: ProbeRow) -> None:
        probe = source.load(source.probe)(self._rank)
        if probe is not None:
            self._add(source.name, probe)

    def _add(self, name: str, probe: Probe) -> None:
        self._probes[name] = probe
        if probe.retries:
            guard.try_again(probe.name)

    def _order(self) -> None:
        """Sort the probes, with those that wrappers have added, into the order of the table."""
        late = dict(self._rank.late_probes)
        self._late_probes = len(late)
        for name, probe in late.items():
            self._add(name, probe)
        order = [source.name for source in SOURCES]
        known = sorted(self._probes.items(), key=lambda item: order.index(item[0]))
        self._probes = dict(known)
        # Methods that a probe does not override are not called.
        self._samples = tuple(
            (probe.name, probe.sample)
            for _, probe in known
            if type(probe).sample is not Probe.sample
        )
        self._reports = tuple(
            (probe.name, probe.fields)
            for _, probe in known
            if type(probe).fields is not Probe.fields
        )
        # If several sources wait, the later row comes first: torch before MPI.
        waiting = [probe for _, probe in known if isinstance(probe, WaitsProbe)]
        self._communication = tuple(reversed(waiting))

    # -- records

    def _send(self, record: AnyRecord) -> None:
        rank = self._rank
        keys = (communication.stuck_key() for communication in self._communication)
        stuck = next((key for key in keys if key), None)
        ratios = [communication.wait_ratio for communication in self._communication]
        self._link.send(
            frames.seal(
                record,
                sender=self._sender,
                unix_ns=time.time_ns(),
                mono_ns=time.monotonic_ns(),
                attempt=rank.who.attempt,
                rank=rank.who.rank,
                pid=rank.pid,
                stuck_key="|".join(str(part) for part in (*stuck, rank.who.attempt))
                if stuck
                else None,
                wait_ratio=max((ratio for ratio in ratios if ratio is not None), default=None),
            )
        )

    def _on_alive(self, command: Command) -> None:
        if command.instance != self._relay:
            if self._relay is None:
                job = self._rank.job
                self._rank.say(f"ddtop: watching {job}; to look: ddtop attach {job}")
            # This is a new relay: it does not know this rank yet.
            self._relay, self._sent_groups = command.instance, None
            self._rank.send_hello_again()
            guard.run("ptracer", dump.allow_tracer, command.pid)
        if command.arguments and not self._complained:
            self._complained = True
            self._rank.say(f"ddtop: {command.arguments[0][:300]}")

    def _on_dump(self, command: Command) -> None:
        rank = self._rank
        if rank.frames.walk.off is not None:
            return  # The relay takes them in another way.
        request, automatic = command.arguments[0][:64], "auto" in command.arguments[1:]
        self._send(
            dump.take(request, rank.who.rank, rank.pid, rank.frames, automatic, rank.lead_id)
        )

    def _on_arrivals(self, command: Command) -> None:
        rank = self._rank
        # A group that is being destroyed must not be read.
        if rank.collectives_paused or rank.destroyed:
            return
        self._asked_at, words = self._tick.now, rank.page.words
        counts = words[layout.ITERATION_SOURCE_AT] in layout.STEP_SOURCES
        iteration = words[layout.ITERATION_AT] if counts else None
        self._send(collectives.take(self._communication, command.arguments[0][:64], iteration))

    def _send_hello(self) -> None:
        rank = self._rank
        identity, init = rank.who, rank.init_arguments
        method = redacted_start(init.method, VALUE_CHARACTERS) if init.method else None
        version = getattr(sys.modules.get("torch"), "__version__", None)
        self._send(
            Hello(
                job=rank.job,
                run=rank.run,
                attempt=identity.attempt,
                rank=identity.rank,
                local_rank=identity.local_rank,
                world_size=identity.world_size,
                host=os.uname().nodename,
                pid=rank.pid,
                start_ticks=rank.start_ticks,
                claim=rank.source,
                script=identity.script,
                argv=redacted_argv(sys.orig_argv),
                python=sys.version.split()[0],
                torch=str(version) if version else None,
                backend=rank.backend,
                environment=redacted_environment(os.environ),
                page_path=str(rank.page.path) if rank.page.path else None,
                launcher_pid=os.getppid(),
                started_unix_ns=rank.started_unix_ns,
                agent_version=ddtop.__version__,
                page_fallback=rank.page.fallback,
                dump_signal=rank.dump_file.signal,
                dump_path=str(rank.dump_file.path) if rank.dump_file.path else None,
                dump_fd=rank.dump_file.descriptor,
                dump_off=rank.dump_file.off,
                init_method=method,
                init_timeout_ms=init.timeout_ms,
                init_unix_ns=init.unix_ns,
                store_file=init.store_file,
                script_digest=self._script_digest,
                role=parallel.role(),
                joined=rank.page.words[layout.MEMBER_AT] > 0,
                above=rank.above,
                saves_to=rank.saves_to,
            )
        )

    def _phase(self, calls: tuple[OpenCall, ...]) -> str:
        rank, seen = self._rank, self._tick.seen
        if rank.exiting or rank.destroyed or (seen is not None and seen.waits_on == "exit"):
            return "leaving"
        if any(call.name in INIT_CALLS for call in calls):
            return "joining"
        return "running" if rank.joined or self._tick.groups else "starting"

    def _report(self) -> None:
        rank, tick, communication = self._rank, self._tick, self._communication
        groups = tick.groups = tuple(group for source in communication for group in source.groups)
        turns = tuple(turn for source in communication for turn in source.turns())
        made = tuple(rank.notes[GroupNotes].made)
        if (groups, turns, made) != self._sent_groups:
            if self._sent_groups is None or groups != self._sent_groups[0]:
                rank.backend = rank.backend or next((group.backend for group in groups), None)
                self._send_hello()
            self._sent_groups = groups, turns, made
            self._send(Groups(groups, turns, made))
        for name, fields in self._reports:
            guard.run(name, self._collect, fields)
        calls = self._open_calls()
        waits = [wait / 1e6 for source in communication for wait in source.longest_waits_ns()]
        # A wait that has happened twice is normal.
        longest_ms, usual_ms, *_ = (*sorted(waits, reverse=True), None, None)
        self._fields.update(
            phase=self._phase(calls),
            open_calls=calls,
            wait_samples=sum(source.wait_samples for source in communication),
            all_samples=sum(source.all_samples for source in communication),
            exception=rank.exception,
            failed_save=rank.failed_save,
            progress_unix_ns=self._moved + tick.unix_minus_mono if self._moved else None,
            healthy_wait_max_ms=longest_ms,
            usual_wait_ms=usual_ms,
            agent_cpu_ns=time.thread_time_ns() + OwnThread.ended_cpu_ns,
            drops=self._link.drops,
            probes_off=tuple(f"{name}: {redact(reason)}" for name, reason in guard.off.items()),
            gc_total_ns=rank.page.words[layout.GC_TOTAL_AT],
        )
        self._send(RankState(*self._fields.values()))

    def _collect(self, fields: Callable[[Tick], Fields]) -> None:
        self._fields.update(fields(self._tick).keywords)

    def _open_calls(self) -> tuple[OpenCall, ...]:
        umm = self._tick.unix_minus_mono
        return tuple(
            OpenCall(
                layout.CALLS[call] or "", since + umm, peer if peer >= 0 else None, tag, thread
            )
            for call, since, peer, tag, thread in self._tick.open_calls
        )
